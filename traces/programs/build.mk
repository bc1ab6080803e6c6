# A small library from generated sources, linked into a program that is run: compilers, assemblers and a linker in parallel.
PARTS := 1 2 3 4 5 6 7 8
OBJECTS := $(PARTS:%=$(OUT)/part%.o)

all: $(OUT)/program
	$(OUT)/program

$(OUT)/part%.c: build.mk
	printf '#include <stdio.h>\n#include <stdlib.h>\nint part%s(int n) { int *p = malloc(4096); p[n & 7] = n; n = p[n & 7] * %s; free(p); return n; }\n' $* $* > $@

$(OUT)/part%.o: $(OUT)/part%.c
	$(CC) -O1 -c -o $@ $<

$(OUT)/main.c: build.mk
	{ for part in $(PARTS); do echo "int part$$part(int);"; done; echo '#include <stdio.h>'; \
	  echo 'int main(void) { int sum = 0;'; for part in $(PARTS); do echo "sum += part$$part($$part);"; done; \
	  echo 'printf("%d", sum); putchar(10); return 0; }'; } > $@

$(OUT)/libparts.a: $(OBJECTS)
	ar rcs $@ $^

$(OUT)/program: $(OUT)/main.c $(OUT)/libparts.a
	$(CC) -O1 -o $@ $^
