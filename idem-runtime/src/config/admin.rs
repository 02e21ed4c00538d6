//! Settings of the admin server.

use std::fmt;
use std::net::SocketAddr;

use super::reader::Reader;

/// Where the admin server listens, and who may do what there.
#[derive(Debug, Clone)]
pub(crate) struct AdminSettings {
    pub addr: SocketAddr,
    /// Without one nothing can be changed.
    pub token: Option<Secret>,
}

/// A text that is never printed.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    #[cfg_attr(not(feature = "admin"), allow(dead_code, reason = "only the admin server compares it"))]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// A shorter one can be guessed.
const SHORTEST_TOKEN: usize = 16;

impl Reader {
    /// The admin server's settings. None: it is off.
    pub(super) fn admin(&mut self) -> Option<AdminSettings> {
        const ADDR: &str = "IDEM_ADMIN_ADDR";
        const TOKEN: &str = "IDEM_ADMIN_TOKEN";
        let token = self.text(TOKEN);
        if token
            .as_ref()
            .is_some_and(|token| token.len() < SHORTEST_TOKEN || !token.bytes().all(|b| b.is_ascii_graphic()))
        {
            self.error(TOKEN, format!("is not {SHORTEST_TOKEN} or more visible ASCII characters without spaces"));
        }
        let given = self.text(ADDR);
        if !cfg!(feature = "admin") {
            if given.is_some_and(|addr| addr != "off") {
                self.error(
                    ADDR,
                    "is set, but this program was built without the cargo feature `admin` of idem-runtime",
                );
            }
            return None;
        }
        let addr = given.unwrap_or_else(|| "127.0.0.1:9464".to_owned());
        if addr == "off" {
            return None;
        }
        let Ok(addr) = addr.parse::<SocketAddr>() else {
            self.error(ADDR, "is no address such as 127.0.0.1:9464 or [::1]:9464, nor `off`");
            return None;
        };
        if !addr.ip().is_loopback() && token.is_none() {
            let problem = "is not set, and IDEM_ADMIN_ADDR is reachable from other machines: set it (or IDEM_ADMIN_TOKEN_FILE), \
                           or use a loopback address such as 127.0.0.1:9464, or `off`";
            self.error(TOKEN, problem);
        }
        Some(AdminSettings { addr, token: token.map(Secret) })
    }
}
