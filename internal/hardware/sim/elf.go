package sim

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
)

// Sizes of the structures of a 64-bit ELF file.
const (
	elfHeaderSize  = 64
	elfProgramSize = 56
	elfSectionSize = 64
	elfSymbolSize  = 24
	elfDynSize     = 16
	elfPage        = 0x1000
)

// sharedObject returns the smallest valid shared library with that SONAME: ldconfig links it, dlopen loads it, and it
// exports nothing. Containers find the driver's files by their SONAME.
//
// Layout: header, three program headers, symbols (one, empty), strings, hash table, dynamic section, section names,
// section headers, all mapped by one segment.
func sharedObject(soname string) []byte {
	var (
		strs    = append([]byte{0}, append([]byte(soname), 0)...)
		names   = []byte("\x00.dynsym\x00.dynstr\x00.hash\x00.dynamic\x00.shstrtab\x00")
		symbols = uint64(elfHeaderSize + 3*elfProgramSize)
		strings = symbols + elfSymbolSize
		hash    = align(strings+uint64(len(strs)), 8)
		hashed  = []uint32{1, 1, 0, 0} // one bucket, one chain, both empty
		dynamic = align(hash+uint64(4*len(hashed)), 8)
		entries = []elf.Dyn64{
			{Tag: int64(elf.DT_SONAME), Val: 1},
			{Tag: int64(elf.DT_HASH), Val: hash},
			{Tag: int64(elf.DT_STRTAB), Val: strings},
			{Tag: int64(elf.DT_SYMTAB), Val: symbols},
			{Tag: int64(elf.DT_STRSZ), Val: uint64(len(strs))},
			{Tag: int64(elf.DT_SYMENT), Val: elfSymbolSize},
			{Tag: int64(elf.DT_NULL)},
		}
		dynamicSize = uint64(elfDynSize * len(entries))
		nameOffset  = dynamic + dynamicSize
		sections    = align(nameOffset+uint64(len(names)), 8)
	)
	header := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elfMachine()), Version: uint32(elf.EV_CURRENT), Phoff: elfHeaderSize, Shoff: sections,
		Ehsize: elfHeaderSize, Phentsize: elfProgramSize, Phnum: 3, Shentsize: elfSectionSize, Shnum: 6, Shstrndx: 5,
	}
	copy(header.Ident[:], []byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)})
	programs := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Filesz: nameOffset, Memsz: nameOffset, Align: elfPage},
		{Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R | elf.PF_W), Off: dynamic, Vaddr: dynamic,
			Paddr: dynamic, Filesz: dynamicSize, Memsz: dynamicSize, Align: 8},
		{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16},
	}
	section := func(name uint32, kind elf.SectionType, flags elf.SectionFlag, offset, size uint64, link, info uint32,
		entry uint64) elf.Section64 {
		s := elf.Section64{Name: name, Type: uint32(kind), Flags: uint64(flags), Off: offset, Size: size, Link: link,
			Info: info, Addralign: 8, Entsize: entry}
		if flags&elf.SHF_ALLOC != 0 {
			s.Addr = offset
		}
		return s
	}
	table := []elf.Section64{
		{},
		section(1, elf.SHT_DYNSYM, elf.SHF_ALLOC, symbols, elfSymbolSize, 2, 1, elfSymbolSize),
		section(9, elf.SHT_STRTAB, elf.SHF_ALLOC, strings, uint64(len(strs)), 0, 0, 0),
		section(17, elf.SHT_HASH, elf.SHF_ALLOC, hash, uint64(4*len(hashed)), 1, 0, 4),
		section(23, elf.SHT_DYNAMIC, elf.SHF_ALLOC|elf.SHF_WRITE, dynamic, dynamicSize, 2, 0, elfDynSize),
		section(32, elf.SHT_STRTAB, 0, nameOffset, uint64(len(names)), 0, 0, 0),
	}
	var out bytes.Buffer
	put := func(offset uint64, value any) {
		out.Write(make([]byte, offset-uint64(out.Len())))
		_ = binary.Write(&out, binary.LittleEndian, value) // bytes.Buffer does not fail
	}
	put(0, header)
	put(elfHeaderSize, programs)
	put(symbols, elf.Sym64{})
	put(strings, strs)
	put(hash, hashed)
	put(dynamic, entries)
	put(nameOffset, names)
	put(sections, table)
	return out.Bytes()
}

func align(n, to uint64) uint64 { return (n + to - 1) / to * to }

func elfMachine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}
