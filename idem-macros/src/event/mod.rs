//! `#[derive(Event)]`: read, then expand.

use proc_macro2::TokenStream;
use quote::quote;

use crate::diag::Diag;

mod expand;
mod read;
mod words;

/// The implementation, or what is wrong with a stub that keeps handlers of the type quiet.
pub fn expand(item: TokenStream) -> TokenStream {
    let mut diag = Diag::new();
    let input = match syn::parse2(item) {
        Ok(input) => input,
        Err(error) => {
            diag.syn_error(&error);
            return diag.finish();
        }
    };
    let implementation = match read::read(&input, &mut diag) {
        Some(event) => expand::implementation(&event),
        None => expand::stub(&input),
    };
    let errors = diag.finish();
    quote!(#errors #implementation)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
