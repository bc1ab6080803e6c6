use super::Folio;

#[test]
fn folio_names_are_the_agreed_ones() {
    let names: Vec<String> = Folio::all().map(Folio::name).collect();
    let agreed = "4KiB 8KiB 16KiB 32KiB 64KiB 128KiB 256KiB 512KiB 1MiB 2MiB-pte 2MiB-pmd";
    assert_eq!(names.join(" "), agreed);
}
