//! Whether a table `processed_event` that was there before can be used.

use std::collections::BTreeSet;

/// What the catalog says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// `r`: a table, `p`: a partitioned one.
    pub kind: String,
    /// How it is partitioned, such as `RANGE (event_id)`.
    pub partitioned_by: Option<String>,
    pub columns: Vec<Column>,
    /// The columns of each unique key, the primary key included, in order.
    pub unique_keys: Vec<Vec<String>>,
    /// Where one group alone can use it: those that do. Of its rows any one, and any other one; and all that
    /// the library's own tables name.
    pub groups: Vec<String>,
}

impl Found {
    /// Its key is the id alone: an event that one group processed would be a duplicate to another one.
    pub(crate) fn serves_one_group(&self) -> bool {
        self.unique_keys.iter().any(|key| key[..] == ["event_id"])
    }
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub name: String,
    /// As `format_type` names it, without length.
    pub of_type: String,
    pub is_required: bool,
    pub has_default: bool,
}

/// How a table can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    /// Partitioned by the id.
    Partitioned,
    /// In one piece.
    Flat,
}

const REBUILD: &str = "`idem migrate --rebuild` makes the table anew and copies its ids";

/// Judges a table for these groups.
///
/// # Errors
/// Everything that is wrong with it, and what to do.
pub(crate) fn judge(found: &Found, groups: &BTreeSet<String>) -> Result<Form, Vec<String>> {
    let mut problems = Vec::new();
    if !matches!(found.kind.as_str(), "r" | "p") {
        problems.push("processed_event is no table: rename it".to_owned());
        return Err(problems);
    }
    columns(found, &mut problems);
    let is_partitioned = match found.partitioned_by.as_deref() {
        None => false,
        Some("RANGE (event_id)") => true,
        // The key says why.
        Some(_) if has_time_in_a_key(found) => false,
        Some(other) => {
            problems.push(format!("processed_event is partitioned by {other}, and not by the id: {REBUILD}"));
            false
        }
    };
    keys(found, groups, &mut problems);
    match (problems.is_empty(), is_partitioned) {
        (false, _) => Err(problems),
        (true, true) => Ok(Form::Partitioned),
        (true, false) => Ok(Form::Flat),
    }
}

fn columns(found: &Found, problems: &mut Vec<String>) {
    let wanted: [(&str, &[&str], &str); 3] = [
        ("event_id", &["uuid"], "uuid"),
        ("consumer_group", &["text", "character varying"], "text"),
        (
            "processed_at",
            &["timestamp with time zone", "timestamp without time zone"],
            "timestamptz NOT NULL DEFAULT now()",
        ),
    ];
    for (name, types, make) in wanted {
        match found.columns.iter().find(|column| column.name == name) {
            None => problems.push(format!(
                "processed_event has no column {name}: ALTER TABLE processed_event ADD COLUMN {name} {make}, with what is \
                 right for the rows that are there"
            )),
            Some(column) if !types.contains(&column.of_type.as_str()) => problems.push(format!(
                "the column {name} of processed_event is {}: it has to be {}",
                column.of_type,
                types.join(" or ")
            )),
            Some(_) => {}
        }
    }
    // The library writes the id and the group.
    let written = |column: &&Column| matches!(column.name.as_str(), "event_id" | "consumer_group");
    for column in found.columns.iter().filter(|column| !written(column)) {
        if (column.is_required || column.name == "processed_at") && !column.has_default {
            problems.push(format!(
                "the column {} of processed_event has no default, and the library does not write it: \
                 ALTER TABLE processed_event ALTER COLUMN {0} SET DEFAULT {}",
                column.name,
                if column.name == "processed_at" { "now()" } else { ".." }
            ));
        }
    }
}

fn has_time_in_a_key(found: &Found) -> bool {
    found.unique_keys.iter().any(|key| key.iter().any(|column| column == "processed_at"))
}

fn keys(found: &Found, groups: &BTreeSet<String>, problems: &mut Vec<String>) {
    let is = |key: &[String], columns: &[&str]| {
        key.len() == columns.len() && columns.iter().all(|column| key.iter().any(|found| found == column))
    };
    if found.serves_one_group() {
        let all: BTreeSet<&String> = groups.iter().chain(&found.groups).collect();
        if all.len() > 1 {
            let names: Vec<&str> = all.into_iter().map(String::as_str).collect();
            problems.push(format!(
                "processed_event has a unique key on event_id alone, so an event that one group processed is lost to \
                 the others, and these use it: {}. Its key has to be (event_id, consumer_group)",
                names.join(", ")
            ));
        }
    } else if found.unique_keys.iter().any(|key| is(key, &["event_id", "consumer_group"])) {
    } else if let Some(key) = found.unique_keys.iter().find(|key| key.iter().any(|column| column == "processed_at")) {
        problems.push(format!(
            "processed_event has the unique key ({}): a redelivery is processed at another time, so nothing ever \
             conflicts, and nothing is recognised. {REBUILD}",
            key.join(", ")
        ));
    } else {
        problems.push(
            "processed_event has no unique key on (event_id, consumer_group), so nothing is recognised: \
             ALTER TABLE processed_event ADD PRIMARY KEY (event_id, consumer_group)"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, of_type: &str) -> Column {
        let has_default = name == "processed_at";
        Column { name: name.to_owned(), of_type: of_type.to_owned(), is_required: true, has_default }
    }

    fn flat(keys: &[&[&str]]) -> Found {
        Found {
            kind: "r".to_owned(),
            partitioned_by: None,
            columns: vec![
                column("event_id", "uuid"),
                column("consumer_group", "character varying"),
                column("processed_at", "timestamp with time zone"),
            ],
            unique_keys: keys.iter().map(|key| key.iter().map(ToString::to_string).collect()).collect(),
            groups: Vec::new(),
        }
    }

    fn groups(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_tables_of_the_common_guides_are_used_as_they_are() {
        for keys in [&[&["event_id", "consumer_group"][..]][..], &[&["consumer_group", "event_id"]], &[&["event_id"]]] {
            assert_eq!(judge(&flat(keys), &groups(&["billing"])), Ok(Form::Flat), "{keys:?}");
        }
        let surrogate = flat(&[&["id"], &["event_id", "consumer_group"]]);
        assert_eq!(judge(&surrogate, &groups(&["billing", "shipping"])), Ok(Form::Flat));
        let ours = Found {
            kind: "p".to_owned(),
            partitioned_by: Some("RANGE (event_id)".to_owned()),
            ..flat(&[&["event_id", "consumer_group"]])
        };
        assert_eq!(judge(&ours, &groups(&["billing", "shipping"])), Ok(Form::Partitioned));
    }

    #[test]
    fn what_would_not_deduplicate_or_lose_events_is_refused_with_the_cure() {
        let with = |change: fn(&mut Found)| {
            let mut found = flat(&[&["event_id", "consumer_group"]]);
            change(&mut found);
            judge(&found, &groups(&["billing"])).unwrap_err().join("\n")
        };
        let recipe = with(|found| {
            found.kind = "p".to_owned();
            found.partitioned_by = Some("RANGE (processed_at)".to_owned());
            found.unique_keys = vec![vec!["event_id".to_owned(), "processed_at".to_owned()]];
        });
        assert!(recipe.contains("(event_id, processed_at)") && recipe.contains("idem migrate --rebuild"), "{recipe}");
        assert_eq!(recipe.lines().count(), 1, "{recipe}");
        assert!(with(|found| found.unique_keys.clear()).contains("ADD PRIMARY KEY"));
        assert!(with(|found| found.kind = "v".to_owned()).contains("no table"));
        assert!(with(|found| drop(found.columns.remove(1))).contains("no column consumer_group"));
        assert!(
            with(|found| found.columns[0].of_type = "text".to_owned()).contains("event_id of processed_event is text")
        );
        assert!(with(|found| found.columns[2].has_default = false).contains("SET DEFAULT now()"));
        assert!(with(|found| found.columns.push(column("tenant", "text"))).contains("column tenant"));
        assert!(with(|found| found.partitioned_by = Some("HASH (event_id)".to_owned())).contains("HASH"));
    }

    #[test]
    fn a_key_on_the_id_alone_serves_one_group() {
        let found = Found { groups: vec!["billing".to_owned()], ..flat(&[&["event_id"]]) };
        assert_eq!(judge(&found, &groups(&["billing"])), Ok(Form::Flat));
        assert_eq!(judge(&found, &groups(&[])), Ok(Form::Flat));
        assert!(found.serves_one_group() && !flat(&[&["event_id", "consumer_group"]]).serves_one_group());
        let problems = judge(&found, &groups(&["shipping"])).unwrap_err();
        assert!(problems[0].contains("billing, shipping"), "{problems:?}");
        let two = Found { groups: vec!["a".to_owned(), "b".to_owned()], ..found };
        assert!(judge(&two, &groups(&[])).is_err());
    }
}
