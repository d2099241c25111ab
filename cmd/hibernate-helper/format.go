package main

const digits = "0123456789abcdef"

// appendAddr writes an address as text: dotted, or eight groups of IPv6 without
// the zero run shortened, save that of the unspecified address.
func appendAddr(out, addr []byte) []byte {
	if len(addr) == 4 {
		for i, b := range addr {
			if i > 0 {
				out = append(out, '.')
			}
			out = appendDecimal(out, uint64(b))
		}
		return out
	}
	if string(addr) == string(make([]byte, 16)) {
		return append(out, "::"...)
	}
	for i := 0; i < len(addr); i += 2 {
		if i > 0 {
			out = append(out, ':')
		}
		for _, b := range addr[i : i+2] {
			out = append(out, digits[b>>4], digits[b&15])
		}
	}
	return out
}

func appendDecimal(out []byte, n uint64) []byte {
	if n >= 10 {
		out = appendDecimal(out, n/10)
	}
	return append(out, digits[n%10])
}
