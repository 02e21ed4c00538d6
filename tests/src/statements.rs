//! As much of PostgreSQL's protocol as the proxy needs.

use std::collections::HashMap;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Larger messages are nobody's.
const LONGEST: usize = 64 * 1024 * 1024;

/// One message as it is on the wire.
pub(crate) struct Frame {
    /// The message's type; 0 for those before a session, which have none.
    pub(crate) kind: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    /// Reads a message of a session.
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let kind = from.read_u8().await?;
        Self::read_after(kind, from).await
    }

    /// Reads the rest of a message whose type has been read.
    pub(crate) async fn read_after(kind: u8, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        Ok(Self { kind, bytes: read_body(vec![kind], from).await? })
    }

    /// Reads a message before the session: the start itself, or a wish for encryption.
    pub(crate) async fn read_untyped(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        Ok(Self { kind: 0, bytes: read_body(Vec::new(), from).await? })
    }

    /// What follows type and length.
    fn body(&self) -> &[u8] {
        let head = if self.kind == 0 { 4 } else { 5 };
        self.bytes.get(head..).unwrap_or_default()
    }
}

async fn read_body(mut bytes: Vec<u8>, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    bytes.extend_from_slice(&length.to_be_bytes());
    let rest = (length as usize).checked_sub(4).filter(|rest| *rest <= LONGEST);
    let rest = rest.ok_or_else(|| io::Error::other("no PostgreSQL message: its length is impossible"))?;
    let head = bytes.len();
    bytes.resize(head + rest, 0);
    from.read_exact(&mut bytes[head..]).await?;
    Ok(bytes)
}

/// The statements of a session, by the names it gave them.
#[derive(Default)]
pub(crate) struct Statements {
    started: bool,
    prepared: HashMap<Vec<u8>, String>,
    portals: HashMap<Vec<u8>, String>,
}

impl Statements {
    /// Whether the session has begun: from then on messages have a type.
    pub(crate) fn started(&self) -> bool {
        self.started
    }

    /// The statement that a client's message lets the server carry out, if it does.
    pub(crate) fn executed_by(&mut self, frame: &Frame) -> Option<String> {
        let mut texts = frame.body().split(|&byte| byte == 0);
        match frame.kind {
            0 => {
                // Protocol 3.x; a wish for encryption or a cancellation has 1234 for its major.
                self.started = frame.body().starts_with(&[0, 3]);
                None
            }
            b'Q' => Some(text(texts.next()?)),
            b'P' => {
                let (name, query) = (texts.next()?, texts.next()?);
                self.prepared.insert(name.to_vec(), text(query));
                None
            }
            b'B' => {
                let (portal, name) = (texts.next()?, texts.next()?);
                let query = self.prepared.get(name)?.clone();
                self.portals.insert(portal.to_vec(), query);
                None
            }
            b'E' => self.portals.get(texts.next()?).cloned(),
            _ => None,
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, body: &[u8]) -> Frame {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        let head = if kind == 0 { Vec::new() } else { vec![kind] };
        Frame { kind, bytes: [&head, &length[..], body].concat() }
    }

    #[test]
    fn both_protocols_name_the_statement_when_it_is_executed() {
        let mut session = Statements::default();
        assert_eq!(session.executed_by(&frame(0, &[4, 210, 22, 47])), None);
        assert!(!session.started(), "a wish for encryption begins no session");
        assert_eq!(session.executed_by(&frame(0, &[0, 3, 0, 0, 0])), None);
        assert!(session.started());

        assert_eq!(session.executed_by(&frame(b'Q', b"COMMIT\0")).unwrap(), "COMMIT");
        assert_eq!(session.executed_by(&frame(b'P', b"s1\0commit\0\0\0")), None);
        assert_eq!(session.executed_by(&frame(b'B', b"\0s1\0\0\0\0\0\0\0")), None);
        assert_eq!(session.executed_by(&frame(b'S', b"")), None);
        assert_eq!(session.executed_by(&frame(b'E', b"\0\0\0\0\0")).unwrap(), "commit");
    }
}
