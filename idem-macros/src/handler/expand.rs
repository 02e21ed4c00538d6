//! Code for a checked handler. Nothing here can fail, and no type of the user's is named: the call
//! of the function tells all types (see the runtime's `__private`).

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};

use super::check::HandlerArgs;
use super::signature::Handler;
use crate::{names, paths};

/// Submits the handler to the registry.
pub fn registration(args: &HandlerArgs, handler: &Handler) -> TokenStream {
    let import = paths::import();
    let allow = allow_deprecated(handler);
    let spec = spec(args, handler);
    let build = build(handler, &quote!(__SPEC));
    quote! {
        #allow
        const _: () = {
            #import
            const __SPEC: __idem::HandlerSpec = #spec;
            fn __build() -> __idem::Handler {
                #build
            }
            __idem::submit! { __idem::Registration::new(__build) }
        };
    }
}

/// Checks the types of a handler whose attribute has a mistake.
pub fn types_only(handler: &Handler) -> TokenStream {
    let import = paths::import();
    let allow = allow_deprecated(handler);
    let build = build(handler, &quote!(__idem::never()));
    quote! {
        #allow
        const _: () = {
            #import
            const _: fn() -> __idem::Handler = || { #build };
        };
    }
}

/// `deny(warnings)` includes the use of a deprecated handler. Elsewhere no `allow` is generated:
/// it is an error under `forbid`.
fn allow_deprecated(handler: &Handler) -> TokenStream {
    if handler.deprecated { quote!(#[allow(deprecated)]) } else { TokenStream::new() }
}

fn spec(args: &HandlerArgs, handler: &Handler) -> TokenStream {
    let HandlerArgs { topic, group, event_type, retry, timeout, concurrency } = args;
    let duration = |duration| {
        let millis = names::millis(duration);
        quote!(__idem::millis(#millis))
    };
    let event_type = option(event_type.as_ref().map(|text| quote!(#text)));
    let retry = option(retry.as_ref().map(|tiers| {
        let tiers = tiers.iter().copied().map(duration);
        quote!(&[#(#tiers),*])
    }));
    let timeout = duration(*timeout);
    let name = handler.ident.to_string();
    let name = name.trim_start_matches("r#");
    // With the user's span they tell the place of the function; else that of the attribute.
    let place = handler.ident.span();
    let file = quote_spanned!(place=> __idem::file!());
    let line = quote_spanned!(place=> __idem::line!());
    quote! {
        __idem::HandlerSpec {
            name: __idem::concat!(__idem::module_path!(), "::", #name),
            file: #file,
            line: #line,
            topic: #topic,
            group: #group,
            event_type: #event_type,
            retry: #retry,
            timeout: #timeout,
            concurrency: #concurrency,
        }
    }
}

fn option(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote!(__idem::Some(#value)),
        None => quote!(__idem::None),
    }
}

/// The handler's parts. Each helper is called at the place that its error should underline, and
/// its arguments are plain variables: rustc blames an argument rather than the call.
fn build(handler: &Handler, spec: &TokenStream) -> TokenStream {
    let function = &handler.ident;
    let name = crate::diag::site(function);
    let event = paths::call("event", handler.event, &TokenStream::new());
    let tx = paths::call("tx", handler.tx, &quote!(__tx));
    let params: Vec<Ident> = (0..handler.params.len()).map(|at| format_ident!("__param_{at}")).collect();
    let param_slots = handler.params.iter().map(|site| paths::call("param", *site, &TokenStream::new()));
    let output = paths::call("output", handler.output, &TokenStream::new());
    let future = Ident::new("__future", Span::call_site().located_at(function.span()));
    let erase = paths::call("erase", name, &quote!(#future, __output));
    quote! {
        let __event = #event;
        #(let #params = #param_slots;)*
        __idem::handler(
            #spec,
            __event.decode(),
            &[#(#params.need()),*],
            move |__tx, __payload, __source| {
                let __tx = #tx;
                let #future = #function(__tx, __event.take(__payload), #(#params.take(__source)),*);
                let __output = #output;
                #erase
            },
        )
    }
}
