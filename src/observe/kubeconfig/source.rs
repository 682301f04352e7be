//! Where the bytes of a field are: in the kubeconfig, or in a file that it names.
//!
//! In: the field. Out: its bytes, in memory that is wiped. The rule of this file: a kubeconfig may be written by a group
//! that is not root, and what it names is read by root, so files are read as everywhere here - beneath the root, regular,
//! of limited size, no symbolic link at the end.

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::Fault;
use crate::facts::ReadError;
use crate::observe::pem;
use crate::profiles::beneath;

/// A field with content.
pub(super) struct Source<'a> {
    /// The field, for messages.
    field: String,
    place: Place<'a>,
}

enum Place<'a> {
    /// Text as it is.
    Plain(&'a str),
    /// Base64.
    Embedded(&'a str),
    /// A file below the root, links on the way not looked at yet.
    File { path: PathBuf, root: PathBuf },
}

impl<'a> Source<'a> {
    pub(super) fn plain(field: String, text: &'a str) -> Self {
        Self { field, place: Place::Plain(text) }
    }

    pub(super) fn embedded(field: String, base64: &'a str) -> Self {
        Self { field, place: Place::Embedded(base64) }
    }

    /// A relative path counts from the kubeconfig's folder (client-go, `ResolveLocalPaths`), which is below the root already.
    pub(super) fn file(field: String, file: &Path, folder: &Path, root: &Path) -> Self {
        let path = if file.is_absolute() {
            file.to_owned()
        } else {
            Path::new("/").join(folder.strip_prefix(root).unwrap_or(folder)).join(file)
        };
        Self { field, place: Place::File { path, root: root.to_owned() } }
    }

    /// What is there.
    pub(super) fn bytes(&self) -> Result<Zeroizing<Vec<u8>>, Fault> {
        match &self.place {
            Place::Plain(text) => Ok(Zeroizing::new(text.as_bytes().to_vec())),
            Place::Embedded(text) => {
                // Go's decoder skips line ends, and nothing else.
                let mut digits = Zeroizing::new(Vec::with_capacity(text.len()));
                digits.extend(text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')));
                pem::decode(&digits).ok_or_else(|| self.malformed("it is not base64".to_owned()))
            }
            Place::File { path, root } => {
                let read = || {
                    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
                        return Err(ReadError::malformed(path, "it is the path of no file"));
                    };
                    let above = beneath(root, above).map_err(|error| ReadError::from_io(path, &error))?;
                    pem::read_file(&above.join(name)).map(|(bytes, _)| bytes)
                };
                read().map_err(|source| Fault::File { field: self.field.clone(), source })
            }
        }
    }

    /// What was read makes no sense.
    pub(super) fn malformed(&self, why: String) -> Fault {
        match &self.place {
            Place::Plain(_) | Place::Embedded(_) => Fault::Malformed { field: self.field.clone(), why },
            Place::File { path, .. } => {
                Fault::File { field: self.field.clone(), source: ReadError::malformed(path, why) }
            }
        }
    }
}
