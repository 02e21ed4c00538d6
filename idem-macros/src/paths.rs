//! Every path of the runtime that generated code names.

use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};

use crate::diag::Site;

/// Brings the runtime into the scope of one generated `const`. It is the only absolute path, so a
/// missing or renamed dependency is one error.
pub fn import() -> TokenStream {
    quote!(
        use ::idem_runtime::__private as __idem;
    )
}

/// A call of one of the runtime's helpers, located so that its errors underline `site`: from the
/// first token of the path to the parentheses.
pub fn call(helper: &str, site: Site, args: &TokenStream) -> TokenStream {
    let (first, last) = site.call_site();
    let helper = Ident::new(helper, last);
    let head = quote_spanned!(first=> __idem);
    let tail = quote_spanned!(last=> ::#helper(#args));
    quote!(#head #tail)
}
