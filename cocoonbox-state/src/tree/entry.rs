use crate::codec::{FormatError, Reader, Writer};

use super::path::name_is_good;

pub(crate) const TARGET_MAX: usize = 4096;
const ATTRIBUTE_MAX: usize = 64 << 10;
const MODE_MAX: u64 = 0o7777;

/// What every kind of entry has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

/// An extended attribute; an access list is one under its kernel's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attribute {
    pub(crate) name: Box<[u8]>,
    pub(crate) value: Box<[u8]>,
}

/// A file's content: the chunks, by their place in the table.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Content {
    /// No bytes.
    #[default]
    Empty,
    /// One chunk is the whole file.
    One(u32),
    /// Several chunks, in extents.
    Many(Box<ManyChunks>),
}

/// The content of a large file: what lies between its extents are zeros.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct ManyChunks {
    /// Start and length, in order, apart from each other.
    pub(crate) extents: Vec<(u64, u64)>,
    /// The chunks that fill them, in order.
    pub(crate) chunks: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct FileNode {
    pub(crate) size: u64,
    pub(crate) content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Node {
    File(FileNode),
    Folder,
    Symlink(Box<[u8]>),
    Fifo,
    /// A folder that is only the way to one that is saved.
    #[default]
    Passage,
}

/// How a file was recognised on this machine; zeros when it is not known. Only the cache keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) inode: u64,
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) name: Box<[u8]>,
    pub(crate) meta: Meta,
    pub(crate) attributes: Box<[Attribute]>,
    pub(crate) node: Node,
    /// The same number for all names of one file, symlink or pipe; 0 when it has one, and for folders.
    pub(crate) link: u64,
    pub(crate) stamp: Stamp,
}

impl PartialEq for Entry {
    /// The stamp is this machine's alone.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.link == other.link && self.is_same_but_for_name(other)
    }
}

impl Entry {
    pub(crate) fn is_same_but_for_name(&self, other: &Self) -> bool {
        self.meta == other.meta && self.attributes == other.attributes && self.node == other.node
    }

    pub(crate) const fn is_folder(&self) -> bool {
        matches!(self.node, Node::Folder | Node::Passage)
    }

    pub(crate) fn chunks(&self) -> &[u32] {
        match &self.node {
            Node::File(FileNode { content: Content::One(chunk), .. }) => std::slice::from_ref(chunk),
            Node::File(FileNode { content: Content::Many(many), .. }) => &many.chunks,
            _ => &[],
        }
    }

    pub(crate) fn chunks_mut(&mut self) -> &mut [u32] {
        match &mut self.node {
            Node::File(FileNode { content: Content::One(chunk), .. }) => std::slice::from_mut(chunk),
            Node::File(FileNode { content: Content::Many(many), .. }) => &mut many.chunks,
            _ => &mut [],
        }
    }

    /// Writes all that a hash covers but the content.
    pub(crate) fn write_head(&self, writer: &mut Writer) {
        let (kind, many) = match &self.node {
            Node::File(file) => (0, matches!(file.content, Content::Many(_))),
            Node::Folder => (1, false),
            Node::Symlink(_) => (2, false),
            Node::Fifo => (3, false),
            Node::Passage => (4, false),
        };
        let link = self.link != 0;
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        writer.bytes(&self.name);
        writer.byte(kind | flag(!self.attributes.is_empty(), 0x10) | flag(link, 0x20) | flag(many, 0x40));
        writer.number(u64::from(self.meta.mode));
        writer.number(u64::from(self.meta.uid));
        writer.number(u64::from(self.meta.gid));
        writer.signed(self.meta.seconds);
        writer.number(u64::from(self.meta.nanos));
        if !self.attributes.is_empty() {
            writer.number(self.attributes.len() as u64);
            for attribute in &self.attributes {
                writer.bytes(&attribute.name);
                writer.bytes(&attribute.value);
            }
        }
        match &self.node {
            Node::File(file) => writer.number(file.size),
            Node::Symlink(target) => writer.bytes(target),
            Node::Folder | Node::Fifo | Node::Passage => {}
        }
        if link {
            writer.raw(&self.link.to_le_bytes());
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer, mut local: impl FnMut(u32) -> u32, stamped: bool) {
        self.write_head(writer);
        if let Node::File(file) = &self.node {
            match &file.content {
                Content::Empty => {}
                Content::One(chunk) => writer.number(u64::from(local(*chunk))),
                Content::Many(many) => {
                    writer.number(many.extents.len() as u64);
                    let mut end = 0;
                    for (start, length) in &many.extents {
                        writer.number(start - end);
                        writer.number(*length);
                        end = start + length;
                    }
                    writer.number(many.chunks.len() as u64);
                    for chunk in &many.chunks {
                        writer.number(u64::from(local(*chunk)));
                    }
                }
            }
        }
        if stamped {
            writer.number(self.stamp.inode);
            writer.signed(self.stamp.seconds);
            writer.number(u64::from(self.stamp.nanos));
        }
    }

    /// Reads an entry; `length_of` gives the length of the local table's chunk, or nothing when it has none such.
    pub(crate) fn read(
        reader: &mut Reader<'_>,
        nameless: bool,
        length_of: impl Fn(u32) -> Option<u32>,
        stamped: bool,
    ) -> Result<Self, FormatError> {
        let wrong = reader.error();
        let name = reader.bytes(255)?;
        if nameless != name.is_empty() || !(nameless || name_is_good(name)) {
            return Err(wrong);
        }
        let kind = reader.byte()?;
        let (attributes, link, many) = (kind & 0x10 != 0, kind & 0x20 != 0, kind & 0x40 != 0);
        let meta = Meta {
            mode: reader.up_to(MODE_MAX)? as u32,
            uid: reader.small()?,
            gid: reader.small()?,
            seconds: reader.signed()?,
            nanos: reader.up_to(999_999_999)? as u32,
        };
        let attributes = if attributes { Self::read_attributes(reader)? } else { Box::default() };
        let linkable = matches!(kind & 0x0F, 0 | 2 | 3);
        if kind & 0x80 != 0 || (link && !linkable) || (many && kind & 0x0F != 0) {
            return Err(wrong);
        }
        let mut node = match kind & 0x0F {
            0 => Node::File(FileNode { size: reader.up_to(i64::MAX as u64)?, content: Content::Empty }),
            1 => Node::Folder,
            2 => {
                let target = reader.bytes(TARGET_MAX)?;
                if target.is_empty() || target.contains(&0) {
                    return Err(wrong);
                }
                Node::Symlink(target.into())
            }
            3 => Node::Fifo,
            4 => Node::Passage,
            _ => return Err(wrong),
        };
        let link = if link { u64::from_le_bytes(reader.array()?) } else { 0 };
        // the bit and the bytes say the same
        if link == 0 && kind & 0x20 != 0 {
            return Err(wrong);
        }
        if let Node::File(file) = &mut node {
            file.content = Self::read_content(reader, file.size, many, length_of)?;
        }
        let stamp = if stamped {
            Stamp { inode: reader.number()?, seconds: reader.signed()?, nanos: reader.small()? }
        } else {
            Stamp::default()
        };
        Ok(Self { name: name.into(), meta, attributes, node, link, stamp })
    }

    fn read_attributes(reader: &mut Reader<'_>) -> Result<Box<[Attribute]>, FormatError> {
        let wrong = reader.error();
        let count = reader.count(2)?;
        let mut attributes: Vec<Attribute> = Vec::new();
        for _ in 0..count {
            let name = reader.bytes(255)?;
            let value = reader.bytes(ATTRIBUTE_MAX)?;
            let kept = name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
            let sorted = attributes.last().is_none_or(|last| *last.name < *name);
            if !kept || !sorted || name.contains(&0) {
                return Err(wrong);
            }
            attributes.push(Attribute { name: name.into(), value: value.into() });
        }
        if attributes.is_empty() { Err(wrong) } else { Ok(attributes.into()) }
    }

    fn read_content(
        reader: &mut Reader<'_>,
        size: u64,
        many: bool,
        length_of: impl Fn(u32) -> Option<u32>,
    ) -> Result<Content, FormatError> {
        let wrong = reader.error();
        if !many {
            if size == 0 {
                return Ok(Content::Empty);
            }
            let chunk = reader.small()?;
            return if length_of(chunk).map(u64::from) == Some(size) {
                Ok(Content::One(chunk))
            } else {
                Err(wrong)
            };
        }
        let mut found = ManyChunks::default();
        let (mut end, mut filled) = (0_u64, 0_u64);
        for index in 0..reader.count(2)? {
            let gap = reader.number()?;
            let length = reader.number()?;
            let start = end.checked_add(gap).ok_or(wrong)?;
            end = start.checked_add(length).ok_or(wrong)?;
            if length == 0 || end > size || (gap == 0 && index > 0) {
                return Err(wrong);
            }
            filled += length;
            found.extents.push((start, length));
        }
        let mut bounds = found.extents.iter().map(|extent| extent.1);
        let mut left = 0_u64;
        for _ in 0..reader.count(1)? {
            let chunk = reader.small()?;
            let length = u64::from(length_of(chunk).ok_or(wrong)?);
            if left == 0 {
                left = bounds.next().ok_or(wrong)?;
            }
            // a chunk lies in one extent
            left = left.checked_sub(length).filter(|_| length > 0).ok_or(wrong)?;
            filled = filled.checked_sub(length).ok_or(wrong)?;
            found.chunks.push(chunk);
        }
        if filled == 0 { Ok(Content::Many(Box::new(found))) } else { Err(wrong) }
    }
}
