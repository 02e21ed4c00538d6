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

/// The user's function as it is, behind it its registration or what is wrong.
pub fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut diag = Diag::new();
    let mut raw = args::parse(args, &mut diag);
    raw.refuse_unavailable(&mut diag);
    let args = check::check(&raw, &mut diag);
    let signature = signature::read(item.clone(), &mut diag);
    let generated = match (args, signature) {
        (Some(args), Some(signature)) => expand::registration(&args, &signature),
        // Mistakes in types are shown beside those in the attribute.
        (None, Some(signature)) => expand::types_only(&signature),
        // A broken signature would only cascade.
        (_, None) => TokenStream::new(),
    };
    let errors = diag.finish();
    quote!(#item #errors #generated)
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
