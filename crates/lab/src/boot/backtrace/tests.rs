use object::{Object, ObjectSymbol};

use super::*;

#[test]
fn frames_are_recognized() {
    assert_eq!(frame("[quire] #0 0xffffffff80123456"), Some((0, 0xffff_ffff_8012_3456)));
    assert_eq!(frame("[quire] #12  0x10 "), Some((12, 16)));
    for other in
        ["[quire] # 0x1", "[quire] #1", "[quire] #1 1", "#1 0x1", "[quire] #-1 0x1", "[quire] #1 0x1 2", ""]
    {
        assert_eq!(frame(other), None, "{other}");
    }
}

/// Stands in for a kernel: this test has an ELF file too.
#[test]
fn addresses_get_names() {
    let path = std::env::current_exe().expect("it is known");
    let bytes = std::fs::read(&path).expect("it can be read");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let main = file.symbols().find(|symbol| symbol.name() == Ok("main")).expect("it has a start").address();
    let symbols = Symbols::new(&path);
    let named = |line: String| symbols.explain(&line).join("\n");
    let first = named(format!("[quire] #0 {main:#x}"));
    assert!(first.starts_with(&format!("[quire] #0 {main:#x} ")) && first.contains("main"), "{first}");
    // The address behind a call.
    assert!(named(format!("[quire] #3 {:#x}", main + 4)).contains("main"));
    for unchanged in ["[quire] #0 0xfffffffffffffff0", "[quire] panicked at a.rs:1:2", ""] {
        assert_eq!(symbols.explain(unchanged), [unchanged]);
    }
    assert_eq!(Symbols::new("/no/such/kernel".as_ref()).explain("[quire] #0 0x10"), ["[quire] #0 0x10"]);
}
