//! The macros of `idem-runtime`, which re-exports and documents them.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;

#[cfg(test)]
mod any_tokens;
mod diag;
mod event;
mod handler;
mod names;
mod paths;
mod suggest;

#[allow(missing_docs, reason = "documented where the runtime re-exports it")]
#[proc_macro_attribute]
pub fn idempotent_handler(args: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(args.into(), item.into()).into()
}

#[allow(missing_docs, reason = "documented where the runtime re-exports it")]
#[proc_macro_derive(Event, attributes(event))]
pub fn event(item: TokenStream) -> TokenStream {
    event::expand(item.into()).into()
}
