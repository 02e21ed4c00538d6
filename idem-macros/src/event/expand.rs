//! Code for an event. Nothing here can fail.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{DeriveInput, GenericParam, Lifetime, LifetimeParam};

use super::read::{Event, Identity, Part, Version};
use crate::diag::site;
use crate::paths;

/// `impl Event for ..`, each bound checked by one helper at the place to blame.
pub fn implementation(event: &Event) -> TokenStream {
    let Event { ident, generics, identity, version, cloud } = event;
    let import = paths::import();
    let id = match identity {
        Identity::Id(part) => on_field("id", part),
        Identity::NaturalKey(parts) => {
            let parts = parts.iter().map(|part| on_field("key_part", part));
            quote!(__idem::natural_key(&[#(#parts),*]))
        }
    };
    let (versions, version) = match version {
        None => (quote!(Unversioned), None),
        Some(Version { version, aggregate }) => {
            let (version, aggregate) = (on_field("version", version), on_field("key_part", aggregate));
            let method = quote! {
                fn version(&self) -> __idem::Option<__idem::EventVersion> {
                    __idem::Some(__idem::EventVersion::new(#aggregate, #version))
                }
            };
            (quote!(Versioned), Some(method))
        }
    };
    let type_field = cloud.then(|| {
        quote!(
            const TYPE_FIELD: __idem::TypeField = __idem::TypeField::CloudEvents;
        )
    });
    let decode = paths::call("decode", site(ident), &quote!(__payload));
    let (impl_generics, ty_generics, clause) = generics.split_for_impl();
    // What the parameters must be is known only where they are: `Self` as a whole has to be one.
    let generic = (!generics.params.is_empty()).then(|| {
        let start = if clause.is_some() { quote!() } else { quote!(where) };
        quote!(#start Self: __idem::Generic)
    });
    let clause = clause.map(|clause| {
        if clause.predicates.trailing_punct() || clause.predicates.is_empty() {
            quote!(#clause)
        } else {
            quote!(#clause,)
        }
    });
    quote! {
        const _: () = {
            #import
            #[automatically_derived]
            impl #impl_generics __idem::Event for #ident #ty_generics #clause #generic {
                type Versions = __idem::#versions;
                #type_field
                fn event_id(&self) -> __idem::EventId {
                    #id
                }
                fn decode(__payload: &[__idem::u8]) -> __idem::Result<Self, __idem::DecodeError> {
                    #decode
                }
                fn schema() -> __idem::Option<__idem::PayloadSchema> {
                    __idem::payload_schema::<Self>().find()
                }
                #version
            }
        };
    }
}

/// A helper's call on a field, which is named with the span of its type: an unsuitable type is
/// underlined.
fn on_field(helper: &str, (field, ty): &Part) -> TokenStream {
    let (first, last) = ty.call_site();
    let mut field = (*field).clone();
    field.set_span(last);
    paths::call(helper, *ty, &quote_spanned!(first=> &self.#field))
}

/// An implementation that does nothing: a broken event is one error, not one more per handler.
pub fn stub(input: &DeriveInput) -> TokenStream {
    let ident = &input.ident;
    let import = paths::import();
    // Handlers name the type with a lifetime that the trait would refuse.
    let mut outlives = input.generics.clone();
    for param in &mut outlives.params {
        if let GenericParam::Lifetime(LifetimeParam { lifetime, .. }) = param {
            *lifetime = Lifetime::new("'static", Span::call_site());
        }
    }
    let (_, ty_generics, _) = outlives.split_for_impl();
    let mut without = input.generics.clone();
    without.params = without.params.into_iter().filter(|param| !matches!(param, GenericParam::Lifetime(_))).collect();
    let (impl_generics, _, clause) = without.split_for_impl();
    if !without.params.is_empty() {
        // Bounds of type parameters are not worth repeating for a stub.
        return TokenStream::new();
    }
    quote! {
        const _: () = {
            #import
            #[automatically_derived]
            impl #impl_generics __idem::Event for #ident #ty_generics #clause {
                type Versions = __idem::Versioned;
                fn event_id(&self) -> __idem::EventId {
                    __idem::never()
                }
                fn decode(_: &[__idem::u8]) -> __idem::Result<Self, __idem::DecodeError> {
                    __idem::never()
                }
            }
        };
    }
}
