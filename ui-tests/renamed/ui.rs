//! Without the line the missing name is one error.

#[test]
fn ui() {
    trybuild::TestCases::new().compile_fail("name_not_brought_back.rs");
}
