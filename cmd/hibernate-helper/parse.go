package main

// appendSockets adds a line of JSON to out for each socket of data, the text of
// one /proc/net table, that others can reach or are connected to. Lines that it
// does not understand (the heading) are passed over.
func appendSockets(out, data []byte, t table) []byte {
	for len(data) > 0 {
		var line []byte
		line, data = cut(data, '\n')
		local, remote, word := columns(line)
		addr, port, ok := endpoint(local)
		state, good := hex(word)
		if !ok || !good || port == 0 || loopback(addr) {
			continue
		}
		if state == t.state || t.proto == "udp" && state == stateEstablished {
			out = append(appendSocket(out, t.proto, addr, port), "}\n"...)
			continue
		}
		peer, peerPort, ok := endpoint(remote)
		if !ok || !t.connected(state) {
			continue
		}
		out = append(appendSocket(out, t.proto, addr, port), `,"peer":"`...)
		out = append(appendAddr(out, peer), `","peerPort":`...)
		out = append(appendDecimal(out, peerPort), "}\n"...)
	}
	return out
}

func appendSocket(out []byte, proto string, addr []byte, port uint64) []byte {
	out = append(out, `{"proto":"`...)
	out = append(out, proto...)
	out = append(out, `","addr":"`...)
	out = appendAddr(out, addr)
	out = append(out, `","port":`...)
	return appendDecimal(out, port)
}

// columns gives the second to fourth word of a line: local and remote address,
// and state.
func columns(line []byte) (local, remote, state []byte) {
	for i := 0; len(line) > 0 && i < 4; {
		var word []byte
		word, line = cut(line, ' ')
		if len(word) == 0 {
			continue
		}
		switch i {
		case 1:
			local = word
		case 2:
			remote = word
		case 3:
			state = word
		}
		i++
	}
	return local, remote, state
}

// endpoint reads ADDRESS:PORT. The address is printed by the kernel as words of
// 32 bits in the byte order of the machine; both architectures that gVisor runs
// on are little-endian.
func endpoint(text []byte) (addr []byte, port uint64, ok bool) {
	host, service := cut(text, ':')
	if len(host) != 8 && len(host) != 32 {
		return nil, 0, false
	}
	for i := 0; i < len(host); i += 8 {
		for j := 6; j >= 0; j -= 2 {
			b, good := hex(host[i+j : i+j+2])
			if !good {
				return nil, 0, false
			}
			addr = append(addr, byte(b))
		}
	}
	port, ok = hex(service)
	return addr, port, ok
}

// loopback tells 127.0.0.0/8, ::1 and the former mapped into IPv6.
func loopback(addr []byte) bool {
	if len(addr) == 4 {
		return addr[0] == 127
	}
	for _, b := range addr[:10] {
		if b != 0 {
			return false
		}
	}
	if addr[10] == 0xff && addr[11] == 0xff {
		return addr[12] == 127
	}
	return string(addr[10:]) == "\x00\x00\x00\x00\x00\x01"
}

func cut(text []byte, at byte) (before, after []byte) {
	for i, c := range text {
		if c == at {
			return text[:i], text[i+1:]
		}
	}
	return text, nil
}

func hex(text []byte) (n uint64, ok bool) {
	if len(text) == 0 || len(text) > 8 {
		return 0, false
	}
	for _, c := range text {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | uint64(c-'0')
		case c >= 'A' && c <= 'F':
			n = n<<4 | uint64(c-'A'+10)
		case c >= 'a' && c <= 'f':
			n = n<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}
