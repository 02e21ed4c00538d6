//! Collects every mistake of an item, so that one compile shows them all.

use std::cell::Cell;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};

/// The tokens an error points at: from the first to the last.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    first: Span,
    last: Span,
}

impl Site {
    /// Spans of generated tokens: names resolve where the macro was called, errors point here.
    pub fn call_site(self) -> (Span, Span) {
        let at = |span: Span| Span::call_site().located_at(span);
        (at(self.first), at(self.last))
    }
}

impl From<Span> for Site {
    fn from(span: Span) -> Self {
        Self { first: span, last: span }
    }
}

/// All of these tokens. Stable Rust can't join spans, but an error can name both ends.
pub fn site(tokens: &impl ToTokens) -> Site {
    let mut spans = tokens.to_token_stream().into_iter().map(|token| token.span());
    let first = spans.next().unwrap_or_else(Span::call_site);
    Site { first, last: spans.last().unwrap_or(first) }
}

/// The collector. It must be read with [`Diag::finish`]: dropping it unread would lose errors.
pub struct Diag {
    errors: Vec<Report>,
    read: Cell<bool>,
}

/// One error, with its ways out.
pub struct Report {
    site: Site,
    message: String,
}

impl Diag {
    pub fn new() -> Self {
        Self { errors: Vec::new(), read: Cell::new(false) }
    }

    pub fn error(&mut self, site: impl Into<Site>, message: impl Into<String>) -> &mut Report {
        self.errors.push(Report { site: site.into(), message: message.into() });
        let last = self.errors.len() - 1;
        &mut self.errors[last]
    }

    /// Takes over what the parser of syn has to say.
    pub fn syn_error(&mut self, error: &syn::Error) -> &mut Report {
        self.error(error.span(), error.to_string())
    }

    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// The errors as items that stop the compile, each at its own place. Empty without errors.
    pub fn finish(self) -> TokenStream {
        self.read.set(true);
        self.errors.iter().map(Report::render).collect()
    }

    /// The messages alone.
    #[cfg(test)]
    pub fn messages(self) -> Vec<String> {
        self.read.set(true);
        self.errors.iter().map(|report| report.message.clone()).collect()
    }
}

impl Drop for Diag {
    fn drop(&mut self) {
        // A second panic while unwinding would hide the first.
        assert!(self.read.get() || std::thread::panicking(), "errors were collected and not reported");
    }
}

impl Report {
    /// What to write instead. May be called more than once.
    pub fn help(&mut self, help: impl AsRef<str>) -> &mut Self {
        self.message.push_str("\nhelp: ");
        self.message.push_str(help.as_ref());
        self
    }

    fn render(&self) -> TokenStream {
        let Site { first, last } = self.site;
        let message = &self.message;
        // rustc underlines from the first token of the macro call to its last one.
        let call = quote_spanned!(last=> { #message });
        let path = quote_spanned!(first=> ::core::compile_error!);
        quote::quote!(#path #call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_is_rendered_once_with_its_help() {
        let mut diag = Diag::new();
        diag.error(Span::call_site(), "one").help("write `two`");
        diag.error(Span::call_site(), "three");
        let tokens = diag.finish().to_string();
        assert_eq!(tokens.matches("compile_error").count(), 2);
        assert!(tokens.contains(r"one\nhelp: write `two`"));
    }

    #[test]
    #[should_panic(expected = "not reported")]
    fn a_forgotten_collector_is_noticed() {
        drop(Diag::new());
    }
}
