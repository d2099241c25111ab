package durable

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Contact is how other nodes reach this one's daemon, and know that it is this one's. It stands in the node's object, and is made by who has
// the tier's key: whoever can only write to the store can't make one.
type Contact struct {
	Address string `json:"address"` // host:port
	Key     string `json:"key"`     // hex SHA-256 of the public key by which it is known
}

// ContactFact is the fact that a node's contact stands in.
const ContactFact = "peer"

// ErrNoContact: a node tells none.
var ErrNoContact = errors.New("the node tells no peer-address")

// sealedContact is a contact as it stands in a fact. Wrapped is a data key of nothing but this.
type sealedContact struct {
	Version int `json:"version"`
	Contact
	WrappedKey WrappedKey `json:"wrap"`
	MAC        string     `json:"mac"`
}

// Seal makes the fact that tells a contact of this node.
func (t *Tier) Seal(ctx context.Context, c Contact) (string, error) {
	k := newKeys()
	w, err := t.cfg.Keys.wrap(ctx, k)
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(sealedContact{Version: 1, Contact: c, WrappedKey: w, MAC: c.mac(k, t.cfg.Node, t.incarnation)})
	return string(data), err
}

// Contact reads what a node tells of its own: ErrNoContact where it tells none, or is none; ErrForeign where it was not made by who has the key, or is
// another node's; ErrWrongKey, ErrVersion.
func (t *Tier) Contact(ctx context.Context, n Node) (Contact, error) {
	text := n.Facts[ContactFact]
	if text == "" {
		return Contact{}, ErrNoContact
	}
	object := nodeObject(n.Name)
	var s sealedContact
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Contact{}, corrupt(object, "fact %s: %v", ContactFact, err)
	}
	if s.Version != 1 {
		return Contact{}, fmt.Errorf("%w: %s tells it by version %d of the fact %s", ErrNoContact, object, s.Version, ContactFact)
	}
	k, err := t.cfg.Keys.unwrap(ctx, s.WrappedKey)
	if err != nil {
		return Contact{}, fmt.Errorf("%s: fact %s: %w", object, ContactFact, err)
	}
	if !hmac.Equal([]byte(s.MAC), []byte(s.Contact.mac(k, n.Name, n.Incarnation))) {
		return Contact{}, fmt.Errorf("%s: %w: its fact %s was not made by this node", object, ErrForeign, ContactFact)
	}
	return s.Contact, nil
}

func (c Contact) mac(k *keys, node, incarnation string) string {
	m := hmac.New(sha256.New, derive(k.data, nil, "hibernate/1 peer", 32))
	m.Write([]byte(strings.Join([]string{"hibernate.peer", "1", node, incarnation, c.Address, c.Key}, "\x00")))
	return hex.EncodeToString(m.Sum(nil))
}
