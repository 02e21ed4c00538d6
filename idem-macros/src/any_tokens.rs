//! Arbitrary tokens, with the words of the macros among them, for property tests.

use proc_macro2::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenTree};
use proptest::prelude::*;

use crate::handler::KEYS;

pub fn token_tree() -> impl Strategy<Value = TokenTree> {
    let words = KEYS.iter().map(|key| key.word);
    let words: Vec<&str> = words.chain(["dlq", "topik", "true", "x", "id", "key", "version", "aggregate"]).collect();
    let leaf = prop_oneof![
        prop::sample::select(words).prop_map(|word| Ident::new(word, Span::call_site()).into()),
        prop::sample::select(",=,=:-.'&<".chars().collect::<Vec<_>>())
            .prop_map(|punct| TokenTree::from(Punct::new(punct, Spacing::Alone))),
        any::<String>().prop_map(|text| Literal::string(&text).into()),
        prop::sample::select(vec!["1s", "10m", "shared", "key", "a.b"]).prop_map(|text| Literal::string(text).into()),
        any::<u64>().prop_map(|number| Literal::u64_unsuffixed(number).into()),
        any::<u8>().prop_map(|number| Literal::u8_suffixed(number).into()),
        any::<Vec<u8>>().prop_map(|bytes| Literal::byte_string(&bytes).into()),
        any::<char>().prop_map(|c| Literal::character(c).into()),
        any::<f32>()
            .prop_filter("a literal", |f| f.is_finite() && f.is_sign_positive())
            .prop_map(|f| Literal::f32_unsuffixed(f).into()),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let delimiters = vec![Delimiter::None, Delimiter::Bracket, Delimiter::Parenthesis, Delimiter::Brace];
        (prop::sample::select(delimiters), prop::collection::vec(inner, 0..6))
            .prop_map(|(delimiter, tokens)| Group::new(delimiter, tokens.into_iter().collect()).into())
    })
}
