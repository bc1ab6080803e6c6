//! Which file of a crate a path leads to. Modules that a path goes through, and imports that pass a name on, are
//! followed to the file that defines the name.

use super::parse::{Module, Modules, Segments};

/// What a path leads to.
enum Found {
    Module(Segments),
    /// An item, in this file.
    Item(usize),
}

/// Imports that lead to imports: more steps than any tree has.
const STEPS: usize = 16;

/// The files that a module's imports and paths lead to, each with the name taken from it.
pub(crate) fn targets(place: &[String], modules: &Modules) -> Vec<(usize, String)> {
    let module = &modules[place];
    let mut found = Vec::new();
    let own = |name: &String| !module.passed_on.contains(name) || module.words.contains(name);
    let imports = module.imports.iter().filter(|(name, _)| own(name)).map(|(_, path)| path);
    for path in imports.chain(&module.globs).chain(&module.paths) {
        if let Some(Found::Item(file)) = resolve(place, path, modules, STEPS) {
            found.push((file, path.last().cloned().unwrap_or_default()));
        }
    }
    for glob in &module.globs {
        let Some(Found::Module(used)) = resolve(place, glob, modules, STEPS) else { continue };
        found.push((modules[&used].file, "*".to_string()));
        // The module may pass on what it imports itself.
        for word in module.words.iter().filter(|word| !knows(module, word)) {
            if let Some(Found::Item(file)) = descend(used.clone(), std::slice::from_ref(word), modules, STEPS)
            {
                found.push((file, word.clone()));
            }
        }
    }
    found
}

/// `None`: another crate's.
fn resolve(place: &[String], path: &[String], modules: &Modules, steps: usize) -> Option<Found> {
    let steps = steps.checked_sub(1)?;
    let (head, rest) = path.split_first()?;
    match head.as_str() {
        "crate" => descend(Vec::new(), rest, modules, steps),
        "self" => descend(place.to_vec(), rest, modules, steps),
        "super" => {
            let above = place.split_last()?.1;
            match rest.first().map(String::as_str) {
                Some("super") => resolve(above, rest, modules, steps),
                _ => descend(above.to_vec(), rest, modules, steps),
            }
        }
        _ => {
            let module = &modules[place];
            // A name imported from another crate under its own name: `use libc;`.
            let itself = module.imports.get(head).is_some_and(|path| path.len() == 1 && path[0] == *head);
            let known = is_module(place, head, modules)
                || module.imports.contains_key(head) && !itself
                || module.defined.contains(head);
            if known { descend(place.to_vec(), path, modules, steps) } else { None }
        }
    }
}

/// From a module along the words of a path.
fn descend(place: Segments, path: &[String], modules: &Modules, steps: usize) -> Option<Found> {
    let steps = steps.checked_sub(1)?;
    let Some((head, rest)) = path.split_first() else { return Some(Found::Module(place)) };
    let module = modules.get(&place)?;
    let is_child = is_module(&place, head, modules);
    // A function and a module may share a name: the module is meant where the path goes on.
    let named_here = module.defined.contains(head) || module.imports.contains_key(head);
    if is_child && !(rest.is_empty() && named_here) {
        let child = [place, vec![head.clone()]].concat();
        return descend(child, rest, modules, steps);
    }
    if module.defined.contains(head) {
        return Some(Found::Item(module.file));
    }
    if let Some(passed_on) = module.imports.get(head) {
        return match resolve(&place, passed_on, modules, steps)? {
            Found::Module(next) => descend(next, rest, modules, steps),
            item => Some(item),
        };
    }
    for glob in &module.globs {
        if let Some(Found::Module(next)) = resolve(&place, glob, modules, steps)
            && next != place
            && knows(&modules[&next], head)
        {
            return descend(next, path, modules, steps);
        }
    }
    // What a macro makes is its own file's.
    module.has_code.then_some(Found::Item(module.file))
}

fn knows(module: &Module, name: &str) -> bool {
    module.defined.contains(name) || module.imports.contains_key(name)
}

fn is_module(place: &[String], name: &str, modules: &Modules) -> bool {
    modules.contains_key(&[place, &[name.to_string()]].concat())
}
