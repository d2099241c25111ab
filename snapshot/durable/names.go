package durable

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// kind of an object, as its header has it.
type kind byte

const (
	packKind     kind = 1
	manifestKind kind = 2
)

func (k kind) directory() string {
	if k == packKind {
		return "p/"
	}
	return "m/"
}

// operation is the random id of a commit, a reader or a collection. No two have the same.
type operation [16]byte

func newOperation() (op operation) {
	_, _ = rand.Read(op[:])
	return op
}

func (op operation) String() string { return hex.EncodeToString(op[:]) }

// objectName is the name of a pack or manifest below data/<name>/.
type objectName struct {
	kind            kind
	epoch, sequence uint64
	op              operation
	number          uint32
}

func (n objectName) String() string {
	return fmt.Sprintf("%s%020d-%020d-%s-%08x", n.kind.directory(), n.epoch, n.sequence, n.op, n.number)
}

var objectPattern = regexp.MustCompile(`^([pm])/([0-9]{20})-([0-9]{20})-([0-9a-f]{32})-([0-9a-f]{8})$`)

func parseObjectName(s string) (objectName, bool) {
	m := objectPattern.FindStringSubmatch(s)
	if m == nil {
		return objectName{}, false
	}
	n := objectName{kind: packKind}
	if m[1] == "m" {
		n.kind = manifestKind
	}
	var err1, err2 error
	n.epoch, err1 = strconv.ParseUint(m[2], 10, 64)
	n.sequence, err2 = strconv.ParseUint(m[3], 10, 64)
	_, err3 := hex.Decode(n.op[:], []byte(m[4]))
	number, err4 := strconv.ParseUint(m[5], 16, 32)
	n.number = uint32(number)
	return n, err1 == nil && err2 == nil && err3 == nil && err4 == nil
}

const (
	headsPrefix = "heads/"
	dataPrefix  = "data/"
	leasePrefix = "l/"
	listPrefix  = "gc/"
)

var (
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9._~-]{1,100}(/[A-Za-z0-9._~-]{1,100})?$`)
	leasePattern = regexp.MustCompile(`^l/([0-9a-f]{32})$`)
	listPattern  = regexp.MustCompile(`^gc/[0-9]{20}-[0-9a-f]{32}$`)
)

func checkName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%q can't be a name in the durable tier: want one or two elements of letters, digits and ._~-", name)
	}
	for e := range strings.SplitSeq(name, "/") {
		if e == "." || e == ".." {
			return fmt.Errorf("%q can't be a name in the durable tier: it has an element %q", name, e)
		}
	}
	return nil
}

func leaseName(op operation) string { return leasePrefix + op.String() }

func listName(number uint64, op operation) string {
	return fmt.Sprintf("%s%020d-%s", listPrefix, number, op)
}
