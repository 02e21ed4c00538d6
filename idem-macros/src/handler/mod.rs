//! `#[idempotent_handler(..)]`: read, check, expand.

use proc_macro2::TokenStream;
use quote::quote;

use crate::diag::Diag;

mod args;
mod check;
mod expand;
mod keys;
mod signature;
mod value;

#[cfg(test)]
pub use keys::KEYS;

/// The user's function as it is, behind it its registration or what is wrong.
pub fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut diag = Diag::new();
    let raw = args::parse(args, &mut diag);
    let demands = check::Demands::of(&raw);
    let args = check::check(&raw, &mut diag);
    let generated = match (args, signature::read(item.clone(), &demands, &mut diag)) {
        (Some(args), Some(handler)) => expand::registration(&args, &handler, &demands),
        // Mistakes in types are shown beside those in the attribute.
        (None, Some(handler)) => expand::types_only(&handler, &demands),
        // A broken signature would only cascade.
        (_, None) => TokenStream::new(),
    };
    let errors = diag.finish();
    quote!(#item #errors #generated)
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
