//! The roles of the parameters. Only what is certain from the syntax is refused here; all else is
//! left to the types, where aliases and renamed imports work.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, FnArg, GenericParam, PatType, ReturnType, Safety, Signature, Token, Type, Visibility, WherePredicate,
};

use super::check::Demands;
use crate::diag::{Diag, Site, site};

/// A signature that can be registered: the name, and where each type stands.
pub struct Handler {
    pub ident: Ident,
    pub deprecated: bool,
    pub tx: Site,
    pub event: Site,
    /// The event's type is written `Vec<..>`.
    pub is_vec: bool,
    pub params: Vec<Site>,
    pub output: Site,
}

/// The function; its body stays unread.
struct Item {
    attrs: Vec<Attribute>,
    sig: Signature,
    has_body: bool,
}

impl Parse for Item {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attrs = Attribute::parse_outer(input)?;
        input.parse::<Visibility>()?;
        let sig = input.parse()?;
        let has_body = !input.peek(Token![;]);
        input.parse::<TokenStream>()?;
        Ok(Self { attrs, sig, has_body })
    }
}

/// Reads the item; `None` when its signature has a mistake.
pub fn read(item: TokenStream, demands: &Demands, diag: &mut Diag) -> Option<Handler> {
    let Ok(Item { attrs, sig, has_body }) = syn::parse2(item.clone()) else {
        no_function(item, diag);
        return None;
    };
    // Counted here, because the collector holds the errors of the arguments too.
    let mut found = 0;
    let mut error = |site: Site, message: String, help: String| {
        diag.error(site, message).help(help);
        found += 1;
    };
    if !has_body {
        let message = format!("the handler `{}` is no free function", sig.ident);
        error(site(&sig.ident), message, format!("write it outside of the trait: {}", wanted(&sig)));
        return None;
    }
    qualifiers(&sig, &mut error);
    repeated_attribute(&attrs, &sig, &mut error);
    let roles = parameters(&sig, demands, &mut error);
    let output = output(&sig, &mut error);
    if found > 0 {
        return None;
    }
    let Roles { tx, event, is_vec, params } = roles?;
    let deprecated = attrs.iter().any(|attr| attr.path().is_ident("deprecated"));
    Some(Handler { ident: sig.ident, deprecated, tx, event, is_vec, params, output: output? })
}

/// Takes the place, the message and the help of one error.
type Error<'a> = dyn FnMut(Site, String, String) + 'a;

/// The attribute on something else than a function.
fn no_function(item: TokenStream, diag: &mut Diag) {
    const ITEMS: &[&str] =
        &["struct", "enum", "union", "trait", "impl", "mod", "const", "static", "type", "use", "extern"];
    let keyword = item.into_iter().find_map(|token| match token {
        TokenTree::Ident(ident) if ITEMS.iter().any(|item| ident == item) => Some(ident),
        _ => None,
    });
    let (span, what) = match &keyword {
        Some(keyword) => (keyword.span(), format!(", not on `{keyword}`")),
        None => (Span::call_site(), String::new()),
    };
    diag.error(span, format!("`#[idempotent_handler(..)]` goes on a free async fn{what}"))
        .help("`async fn on_order(tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult { .. }`");
}

/// Everything between `pub` and the parameters, and what a registered function can't have.
fn qualifiers(sig: &Signature, error: &mut Error) {
    let name = &sig.ident;
    let whole = wanted(sig);
    if sig.asyncness.is_none() {
        error(site(&sig.fn_token), format!("the handler `{name}` is not async"), whole.clone());
    }
    let mut refuse = |site: Site, what: &str| {
        error(site, format!("a handler can't be {what}"), whole.clone());
    };
    // `const async` is refused by rustc itself.
    if let (Some(token), None) = (&sig.constness, &sig.asyncness) {
        refuse(site(token), "`const`");
    }
    if let Safety::Unsafe(token) = &sig.safety {
        refuse(site(token), "`unsafe`: nothing calls it that could keep its promises");
    }
    if let Some(abi) = &sig.abi {
        refuse(site(abi), "`extern`");
    }
    if let Some(variadic) = &sig.variadic {
        refuse(site(variadic), "variadic");
    }
    let is_lifetime = |param: &&GenericParam| matches!(param, GenericParam::Lifetime(_));
    let bounds_lifetimes = |predicate: &WherePredicate| matches!(predicate, WherePredicate::Lifetime(_));
    let generics = &sig.generics;
    // Lifetimes are only names for what is elided elsewhere.
    if let Some(param) = generics.params.iter().find(|param| !is_lifetime(param)) {
        refuse(site(param), "generic: it is registered once, for one event");
    } else if let Some(clause) =
        generics.where_clause.as_ref().filter(|clause| !clause.predicates.iter().all(bounds_lifetimes))
    {
        refuse(site(&clause.where_token), "generic, so it needs no `where`");
    }
}

/// Two registrations of one function would be two handlers of the same name.
fn repeated_attribute(attrs: &[Attribute], sig: &Signature, error: &mut Error) {
    let ours = |attr: &&Attribute| attr.path().segments.last().is_some_and(|last| last.ident == "idempotent_handler");
    if let Some(second) = attrs.iter().find(ours) {
        error(
            site(second),
            format!("`{}` is a handler already", sig.ident),
            "write a second handler that calls the same function".to_owned(),
        );
    }
}

/// Where the types of transaction, event and further parameters stand.
struct Roles {
    tx: Site,
    event: Site,
    is_vec: bool,
    params: Vec<Site>,
}

fn parameters(sig: &Signature, demands: &Demands, error: &mut Error) -> Option<Roles> {
    let name = &sig.ident;
    let mut typed: Vec<&PatType> = Vec::new();
    for input in &sig.inputs {
        let attrs = match input {
            FnArg::Receiver(receiver) => {
                error(site(receiver), format!("the handler `{name}` is no method"), wanted(sig));
                return None;
            }
            FnArg::Typed(input) => {
                typed.push(input);
                &input.attrs
            }
        };
        if let Some(cfg) = attrs.iter().find(|attr| attr.path().is_ident("cfg")) {
            let help = "put `#[cfg(..)]` on two whole functions".to_owned();
            error(site(cfg), "a handler's parameter can't be conditional".to_owned(), help);
        }
        if let Type::ImplTrait(ty) = input_type(input)? {
            let help = "name the type: a handler is registered once, for one event".to_owned();
            error(site(ty), format!("`{}` is no type of its own", show(ty)), help);
        }
    }
    let [tx, event, params @ ..] = typed.as_slice() else {
        let what = if typed.is_empty() { "no parameters" } else { "one parameter" };
        let at = sig.paren_token.span.join().into();
        let message = format!("the handler `{name}` has {what}, and takes a transaction and an event");
        error(at, message, wanted(sig));
        return None;
    };
    if last_segment(&event.ty).as_deref() == Some("Tx") && last_segment(&tx.ty).as_deref() != Some("Tx") {
        error(site(tx), format!("the transaction comes first in the handler `{name}`"), wanted(sig));
        return None;
    }
    transaction(tx, error);
    event_by_value(event, demands, error);
    let mut clients = 0;
    for param in params {
        clients += usize::from(last_segment(&param.ty).as_deref() == Some("MoneyClient"));
        further(param, clients, error);
    }
    Some(Roles {
        tx: site(&tx.ty),
        event: site(&event.ty),
        is_vec: is_vec(&event.ty),
        params: params.iter().map(|param| site(&param.ty)).collect(),
    })
}

fn input_type(input: &FnArg) -> Option<&Type> {
    match input {
        FnArg::Typed(input) => Some(&input.ty),
        FnArg::Receiver(_) => None,
    }
}

/// `tx: Tx<'_>`, `tx: &Tx<'_>` and `tx: &mut Tx<'static>`.
fn transaction(tx: &PatType, error: &mut Error) {
    if last_segment(&tx.ty).as_deref() != Some("Tx") {
        return;
    }
    let help = format!("`{}: &mut Tx<'_>`", show(&tx.pat));
    let ty = site(&tx.ty);
    match &*tx.ty {
        Type::Reference(reference) if reference.mutability.is_none() => {
            error(ty, "the transaction is borrowed mutably: every query needs it so".to_owned(), help);
        }
        Type::Reference(reference) => {
            // A lifetime is a quote and an identifier.
            let tokens = flat_idents(reference.elem.to_token_stream());
            let named = |name: &Ident| {
                tokens
                    .iter()
                    .find(|token| matches!(token, TokenTree::Ident(ident) if ident == name))
                    .map(TokenTree::span)
            };
            let borrow = reference.lifetime.as_ref().map(|lifetime| &lifetime.ident).filter(|name| *name != "_");
            let fixed = Ident::new("static", Span::call_site());
            if let Some(at) = borrow.filter(|name| **name == fixed).map(Ident::span).or_else(|| named(&fixed)) {
                let message = "the transaction ends with the handler's event, and is not `'static`";
                error(at.into(), message.to_owned(), help);
            } else if let Some((name, at)) = borrow.and_then(|name| Some((name, named(name)?))) {
                let message =
                    format!("the borrow of the transaction is shorter than `'{name}`, the transaction itself");
                error(at.into(), message, help);
            }
        }
        _ => {
            error(ty, "the transaction is borrowed: the library commits it".to_owned(), help);
        }
    }
}

/// `event: &E`, `events: &[E]`, and a `Vec` that nothing fills.
fn event_by_value(event: &PatType, demands: &Demands, error: &mut Error) {
    let name = show(&event.pat);
    match &*event.ty {
        Type::Reference(reference) => {
            let (what, ty) = match &*reference.elem {
                Type::Slice(slice) => ("events belong", format!("Vec<{}>", show(&slice.elem))),
                ty => ("event belongs", show(ty)),
            };
            let they = if what.ends_with('s') { "it" } else { "them" };
            let message = format!("the {what} to the handler: take {they} by value");
            error(site(&event.ty), message, format!("`{name}: {ty}`"));
        }
        ty if is_vec(ty) && demands.batch == Some(false) => {
            let element = vec_element(ty).unwrap_or_else(|| "OrderConfirmed".to_owned());
            let message = "a handler takes one event at a time, unless it has `batch`".to_owned();
            error(site(ty), message, format!("add `batch = 500` to the attribute, or take `event: {element}`"));
        }
        _ => {}
    }
}

/// `other: &mut Tx<'_>`, `state: &State<T>`, and the second `payments: MoneyClient`.
fn further(param: &PatType, clients: usize, error: &mut Error) {
    let name = show(&param.pat);
    let last = last_segment(&param.ty);
    let (message, help) = if last.as_deref() == Some("Tx") {
        let help = "use the first parameter; `tx.begin()` is a savepoint".to_owned();
        ("a handler has one transaction".to_owned(), help)
    } else if let Type::Reference(reference) = &*param.ty {
        let help = format!("`{name}: {}`", show(&reference.elem));
        (format!("`{name}` is made for each call: take it by value"), help)
    } else if last.as_deref() == Some("MoneyClient") && clients > 1 {
        let help = format!("remove `{name}`: one client makes any number of calls");
        ("a handler has one `MoneyClient`".to_owned(), help)
    } else {
        return;
    };
    error(site(&param.ty), message, help);
}

fn is_vec(ty: &Type) -> bool {
    matches!(ty, Type::Path(_)) && last_segment(ty).as_deref() == Some("Vec")
}

fn output(sig: &Signature, error: &mut Error) -> Option<Site> {
    match &sig.output {
        ReturnType::Type(_, ty) => Some(site(ty)),
        ReturnType::Default => {
            let message = format!("the handler `{}` returns nothing, so it could never fail", sig.ident);
            let help = "return `HandlerResult`, and `Ok(())` at the end".to_owned();
            error(sig.paren_token.span.close().into(), message, help);
            None
        }
    }
}

/// The signature as it should be, with the event's type where it is known.
fn wanted(sig: &Signature) -> String {
    let event = sig
        .inputs
        .iter()
        .filter_map(input_type)
        .map(|ty| match ty {
            Type::Reference(reference) => &*reference.elem,
            ty => ty,
        })
        .find(|ty| {
            let parameter = |last: &str| sig.generics.type_params().any(|param| param.ident == last);
            let known = ["Tx", "State", "Delivery", "MoneyClient", "PgConnection", "Transaction", "Vec"];
            last_segment(ty).is_some_and(|last| !known.contains(&last.as_str()) && !parameter(&last))
        })
        .map_or_else(|| "OrderConfirmed".to_owned(), show);
    format!("`async fn {}(tx: &mut Tx<'_>, event: {event}) -> HandlerResult`", sig.ident)
}

/// The last name of a path, also behind a reference.
fn last_segment(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        Type::Reference(reference) => last_segment(&reference.elem),
        _ => None,
    }
}

fn vec_element(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    match &path.path.segments.last()?.arguments {
        syn::PathArguments::AngleBracketed(arguments) => arguments.args.first().map(show),
        _ => None,
    }
}

fn flat_idents(tokens: TokenStream) -> Vec<TokenTree> {
    let inner = |token: TokenTree| match token {
        TokenTree::Group(group) => flat_idents(group.stream()),
        token => vec![token],
    };
    tokens.into_iter().flat_map(inner).collect()
}

/// Tokens as one would write them.
fn show(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, tight) in
        [(" < ", "<"), ("< ", "<"), (" >", ">"), (" :: ", "::"), (":: ", "::"), ("& ", "&"), (" ,", ",")]
    {
        text = text.replace(spaced, tight);
    }
    text
}
