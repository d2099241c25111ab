package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// printJSON writes a message with the names and all the fields of its proto. (protojson varies its spaces on purpose;
// they are made regular here.)
func printJSON(out io.Writer, m proto.Message) error {
	raw, err := toJSON(m)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, raw, "", "  "); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	text.WriteByte('\n')
	_, err = out.Write(text.Bytes())
	return err
}

func toJSON(m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return raw, nil
}

// encode writes what is no message of ours as JSON.
func encode(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// table writes aligned columns.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer) table {
	return table{tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)}
}

// row writes one; empty cells at its end leave no blanks.
func (t table) row(cells ...string) {
	fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (t table) flush() error { return t.w.Flush() }

// toJSONLine writes a message on one line.
func toJSONLine(m proto.Message) ([]byte, error) {
	raw, err := toJSON(m)
	if err != nil {
		return nil, err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	line.WriteByte('\n')
	return line.Bytes(), nil
}
