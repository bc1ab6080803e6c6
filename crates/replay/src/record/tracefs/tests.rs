use super::*;

const FORMAT: &str = "name: sys_enter
ID: 443
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:long id;\toffset:8;\tsize:8;\tsigned:1;
\tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;
\tfield:char * name;\toffset:64;\tsize:4;\tsigned:0;

print fmt: \"NR %ld\", REC->id
";

#[test]
fn fields_are_found_by_name() {
    let fields = parse_format(FORMAT);
    assert_eq!(fields.len(), 4);
    assert_eq!(fields["id"], Field { offset: 8, size: 8 });
    assert_eq!(fields["args"], Field { offset: 16, size: 48 });
    assert_eq!(fields["name"], Field { offset: 64, size: 4 });
}

#[test]
fn values_are_little_endian_and_bounded() {
    let data: Vec<u8> = (0..64).collect();
    let fields = parse_format(FORMAT);
    assert_eq!(fields["common_type"].read(&data), Some(0x0100));
    assert_eq!(fields["args"].word(1).read(&data), Some(0x1f1e_1d1c_1b1a_1918));
    assert_eq!(fields["name"].read(&data), None);
}
