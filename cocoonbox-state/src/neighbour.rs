//! Chunks of other boxes, for who holds those boxes' keys and not the user's.

use std::sync::Arc;

use cocoonbox_core::Retry;

use crate::manifest::{ReadError, load_chain};
use crate::object::Fetch;
use crate::save::Neighbours;
use crate::tree::ChunkTable;
use crate::{BoxKeys, SaveId};

/// Reads the chunks of these saves, for a save that may rest on them once it verified them. A save that cannot be read
/// is left out.
///
/// # Errors
/// The store is not available.
pub async fn load_neighbours(
    fetch: &Arc<dyn Fetch>,
    saves: &[(BoxKeys, SaveId)],
) -> Result<Neighbours, ReadError> {
    let mut table = ChunkTable::default();
    for (keys, save) in saves {
        match load_chain(&**fetch, keys, save, &mut table).await {
            Ok(_) => {}
            Err(error) if error.retry() == Retry::Never => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Neighbours(Arc::new(table)))
}
