//! Did you mean.

/// The word that was probably meant, when one is near enough.
pub fn nearest<'a>(typed: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    // A third of the letters may be wrong, so that `grup` is `group` and `foo` is nothing.
    let limit = (typed.chars().count() / 3).clamp(1, 3);
    words
        .into_iter()
        .map(|word| (distance(&typed, word), word))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, word)| word)
}

/// Edits from one word to the other: insert, delete, replace, or swap two neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let edited = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    edited.min(rows[i - 2][j - 2] + 1)
                } else {
                    edited
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let words = ["topic", "group", "retry", "timeout", "transaction", "concurrency"];
        let cases = [
            ("topik", Some("topic")),
            ("Topic", Some("topic")),
            ("tpoic", Some("topic")),
            ("grup", Some("group")),
            ("concurency", Some("concurrency")),
            ("transactoin", Some("transaction")),
            ("retyr", Some("retry")),
            ("foo", None),
            ("x", None),
            ("", None),
            ("partitions", None),
        ];
        for (typed, expected) in cases {
            assert_eq!(nearest(typed, words), expected, "{typed}");
        }
    }
}
