package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"os"
	"strings"
)

const (
	markName  = "mark"
	markMagic = "berthmrk"
	markUsed  = 48
	markSize  = sectorSize
)

// mark is the second opinion about what was acknowledged (FORMAT.md 2.3 and 6).
type mark struct {
	valid bool
	seq   uint64
	boot  bootHash
	clean bool
}

// bootHash stands for one boot of the kernel; zero means unknown and equals nothing.
type bootHash [16]byte

// hashBoot turns a boot id into its hash; "" reads the kernel's (random(4), /proc/sys/kernel/random/boot_id).
func hashBoot(id string) bootHash {
	if id == "" {
		b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return bootHash{} // unknown: the mark then proves nothing about torn tails
		}
		id = strings.TrimSpace(string(b))
	}
	sum := sha256.Sum256([]byte(id))
	return bootHash(sum[:16])
}

// sameBoot reports whether m was written in the boot b, both known.
func (m mark) sameBoot(b bootHash) bool {
	return m.valid && b != bootHash{} && m.boot == b
}

func (m mark) encode(b []byte) {
	le := binary.LittleEndian
	copy(b, markMagic)
	le.PutUint32(b[8:], Version)
	le.PutUint64(b[16:], m.seq)
	copy(b[24:40], m.boot[:])
	le.PutUint32(b[40:], 0)
	if m.clean {
		le.PutUint32(b[40:], 1)
	}
	le.PutUint32(b[12:], markSum(b))
}

func markSum(b []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, b[:12]), castagnoli, b[16:markUsed])
}

// parseMark answers an invalid mark for anything unreadable; a later version is as good as none.
func parseMark(b []byte) mark {
	le := binary.LittleEndian
	if len(b) < markUsed || !bytes.HasPrefix(b, []byte(markMagic)) || le.Uint32(b[12:]) != markSum(b) || le.Uint32(b[8:]) != Version {
		return mark{}
	}
	m := mark{valid: true, seq: le.Uint64(b[16:]), clean: le.Uint32(b[40:]) == 1}
	copy(m.boot[:], b[24:40])
	return m
}
