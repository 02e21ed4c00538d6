//! Code for a checked handler. Nothing here can fail, and no type of the user's is named: the call
//! of the function tells all types (see the runtime's `__private`).

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;

use super::check::{Demands, HandlerArgs, Money};
use super::signature::Handler;
use crate::diag::Site;
use crate::{names, paths};

/// Submits the handler to the registry.
pub fn registration(args: &HandlerArgs, handler: &Handler, demands: &Demands) -> TokenStream {
    let import = paths::import();
    let allow = allow_deprecated(handler);
    let spec = spec(args, handler);
    let build = build(handler, demands, &quote!(__SPEC));
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
pub fn types_only(handler: &Handler, demands: &Demands) -> TokenStream {
    let import = paths::import();
    let allow = allow_deprecated(handler);
    let build = build(handler, demands, &quote!(__idem::never()));
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
    let HandlerArgs { topic, group, event_type, retry, timeout, concurrency, batch, stale, summary, .. } = args;
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
    let money = option(args.money.as_ref().map(|Money { operation, conflict }| {
        let operation = option(operation.as_ref().map(|text| quote!(#text)));
        let conflict = variant("Conflict", conflict);
        quote!(__idem::Money { operation: #operation, conflict: #conflict })
    }));
    let transaction = variant("Transaction", &args.transaction);
    let batch = option(batch.map(|size| quote!(#size)));
    let order = variant("Order", &args.order);
    let expired = variant("Expired", &args.expired);
    let summary = option(summary.as_ref().map(|text| quote!(#text)));
    let name = handler.ident.unraw().to_string();
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
            money: #money,
            transaction: #transaction,
            batch: #batch,
            order: #order,
            expired: #expired,
            stale: #stale,
            summary: #summary,
        }
    }
}

fn option(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote!(__idem::Some(#value)),
        None => quote!(__idem::None),
    }
}

/// The runtime's variant for a word of the attribute: `in_flight` is `InFlight`.
fn variant(of: &str, word: &str) -> TokenStream {
    let capitalized = word.split('_').flat_map(|part| {
        let mut chars = part.chars();
        chars.next().into_iter().flat_map(char::to_uppercase).chain(chars)
    });
    let (of, variant) = (format_ident!("{of}"), format_ident!("{}", capitalized.collect::<String>()));
    quote!(__idem::#of::#variant)
}

/// The handler's parts. Each helper is called at the place that its error should underline, and
/// its arguments are plain variables: rustc blames an argument rather than the call.
fn build(handler: &Handler, demands: &Demands, spec: &TokenStream) -> TokenStream {
    let none = TokenStream::new();
    let function = &handler.ident;
    let name = crate::diag::site(function);
    let in_batches = demands.batch.unwrap_or(handler.is_vec);
    let event = paths::call(if in_batches { "events" } else { "event" }, handler.event, &none);
    let tx = paths::call("tx", handler.tx, &quote!(__tx));
    let params: Vec<Ident> = (0..handler.params.len()).map(|at| format_ident!("__param_{at}")).collect();
    let param = if demands.money == Some(false) { "param_without_money" } else { "param" };
    let param_slots = handler.params.iter().map(|site| paths::call(param, *site, &none));
    let rules = rules(handler, demands, &params);
    let output = paths::call("output", handler.output, &none);
    let future = Ident::new("__future", Span::call_site().located_at(function.span()));
    let erase = paths::call("erase", name, &quote!(#future, __output));
    quote! {
        let __event = #event;
        #(let #params = #param_slots;)*
        #rules
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

/// What the attribute demands of the types together. Arguments are blamed first, so they stand where
/// the call does.
fn rules(handler: &Handler, demands: &Demands, params: &[Ident]) -> TokenStream {
    let rule = |helper: &str, site: Site, args: &[&str]| {
        let (_, at) = site.call_site();
        let args = args.iter().map(|arg| Ident::new(arg, at));
        let call = paths::call(helper, site, &quote_spanned!(at=> #(#args),*));
        quote!(#call;)
    };
    let money = demands.money_at.map(|site| {
        // A type of the handler's name lets the error name the handler.
        let mut marker = handler.ident.clone();
        marker.set_span(Span::mixed_site());
        let params = params.iter().rev().fold(quote!(()), |rest, param| quote!((#param, #rest)));
        let money = rule("money", site, &["__handler", "__params"]);
        quote! {
            enum #marker {}
            let __handler = __idem::name::<#marker>();
            let __params = #params;
            #money
        }
    });
    let stale = demands.stale_at.map(|site| rule("stale", site, &["__event"]));
    quote!(#money #stale)
}
