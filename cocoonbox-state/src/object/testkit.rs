//! The contract of [`Objects`] as a suite: a store is done when all of it passes on a fresh one.

use bytes::Bytes;

use super::{ByteRange, ObjectError, Objects};
use crate::{Domain, Label, ObjectKey, PackId, Prefix, SaveId};

fn uid(text: &str) -> Label {
    text.parse().expect("a label")
}

/// Runs the whole suite.
///
/// # Panics
/// When a promise is broken.
pub async fn holds_the_contract(objects: &dyn Objects) {
    what_was_put_is_given_whole_and_in_parts(objects).await;
    what_is_not_there_is_not_found(objects).await;
    nothing_is_overwritten(objects).await;
    listings_hold_what_is_under_the_prefix(objects).await;
    a_large_object_reads_back(objects).await;
}

/// An object is given whole, by span and by its tail.
///
/// # Panics
/// When it is not.
pub async fn what_was_put_is_given_whole_and_in_parts(objects: &dyn Objects) {
    let key = ObjectKey::save(&uid("kit-1"), &uid("cb-a"), &SaveId::from_bytes([1; 16]));
    objects.put(&key, Bytes::from_static(b"0123456789")).await.expect("it is put");
    let cases: [(ByteRange, &[u8]); 5] = [
        (ByteRange::Whole, b"0123456789"),
        (ByteRange::Span(2..5), b"234"),
        (ByteRange::Span(9..10), b"9"),
        (ByteRange::Tail(3), b"789"),
        (ByteRange::Tail(100), b"0123456789"),
    ];
    for (range, expected) in cases {
        let fetched = objects.get(&key, range.clone()).await.expect("it is given");
        assert_eq!((&fetched.bytes[..], fetched.length), (expected, 10), "{range:?}");
    }
    for beyond in [ByteRange::Span(5..11), ByteRange::Span(20..30)] {
        let refused = objects.get(&key, beyond.clone()).await;
        assert!(matches!(refused, Err(ObjectError::OutOfRange)), "{beyond:?}: {refused:?}");
    }
    let head = objects.head(&key).await.expect("it is looked at").expect("it is there");
    assert_eq!((head.key, head.length), (key, 10));
}

/// What is not there is said to be so, and deleting it succeeds.
///
/// # Panics
/// When it is not.
pub async fn what_is_not_there_is_not_found(objects: &dyn Objects) {
    let key = ObjectKey::save(&uid("kit-2"), &uid("cb-a"), &SaveId::from_bytes([2; 16]));
    for range in [ByteRange::Whole, ByteRange::Span(0..1), ByteRange::Tail(5)] {
        let missing = objects.get(&key, range).await;
        assert!(matches!(missing, Err(ObjectError::NotFound)), "{missing:?}");
    }
    assert!(objects.head(&key).await.expect("it is looked at").is_none());
    objects.delete(&key).await.expect("nothing is deleted");
}

/// A name that is taken stays what it is, until it is deleted.
///
/// # Panics
/// When it is overwritten.
pub async fn nothing_is_overwritten(objects: &dyn Objects) {
    let key = ObjectKey::pack(&uid("kit-3"), &Domain::user(), &PackId::from_bytes([3; 16]));
    objects.put(&key, Bytes::from_static(b"first")).await.expect("it is put");
    let again = objects.put(&key, Bytes::from_static(b"second")).await;
    assert!(matches!(again, Err(ObjectError::AlreadyExists)), "{again:?}");
    assert_eq!(&objects.get(&key, ByteRange::Whole).await.expect("it is given").bytes[..], b"first");
    objects.delete(&key).await.expect("it is deleted");
    objects.put(&key, Bytes::from_static(b"third")).await.expect("the name is free");
    let free = ObjectKey::pack(&uid("kit-3"), &Domain::user(), &PackId::from_bytes([4; 16]));
    let puts = (0..8_u8).map(|writer| objects.put(&free, Bytes::from(vec![writer; 100])));
    let done = futures::future::join_all(puts).await;
    assert_eq!(done.iter().filter(|put| put.is_ok()).count(), 1, "{done:?}");
}

/// A listing holds all under its prefix, sorted, and nothing else.
///
/// # Panics
/// When it does not.
pub async fn listings_hold_what_is_under_the_prefix(objects: &dyn Objects) {
    let (uid, label) = (uid("kit-4"), uid("cb-a"));
    let mut keys: Vec<ObjectKey> =
        (0..20_u8).map(|number| ObjectKey::save(&uid, &label, &SaveId::from_bytes([number; 16]))).collect();
    for key in keys.iter().rev() {
        objects.put(key, Bytes::from_static(b"x")).await.expect("it is put");
    }
    let other = ObjectKey::save(&uid, &"cb-ab".parse().expect("a label"), &SaveId::from_bytes([9; 16]));
    objects.put(&other, Bytes::from_static(b"x")).await.expect("it is put");
    objects.delete(&keys.remove(7)).await.expect("it is deleted");
    let listed = objects.list(&Prefix::saves(&uid, &label)).await.expect("it is listed");
    assert_eq!(listed.into_iter().map(|listed| listed.key).collect::<Vec<_>>(), keys);
    assert_eq!(objects.list(&Prefix::all_saves(&uid)).await.expect("it is listed").len(), 20);
    assert!(objects.list(&Prefix::all_packs(&uid)).await.expect("it is listed").is_empty());
}

/// An object as long as a pack reads back.
///
/// # Panics
/// When it does not.
pub async fn a_large_object_reads_back(objects: &dyn Objects) {
    let key = ObjectKey::pack(&uid("kit-5"), &Domain::user(), &PackId::from_bytes([5; 16]));
    let bytes = Bytes::from((0..16_u32 << 20).map(|at| (at % 251) as u8).collect::<Vec<u8>>());
    objects.put(&key, bytes.clone()).await.expect("it is put");
    assert!(objects.get(&key, ByteRange::Whole).await.expect("it is given").bytes == bytes);
    let span = objects.get(&key, ByteRange::Span(9_999_999..10_000_500)).await.expect("it is given");
    assert!(span.bytes == bytes[9_999_999..10_000_500]);
}
