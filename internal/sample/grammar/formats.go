package grammar

import "strings"

// formatAnd is a pattern for strings that have a format, itself a whole pattern, and match another pattern; "" if that
// cannot be written as one.
func formatAnd(format, pattern string) string {
	ahead := "^(?=" + strings.TrimPrefix(format, "^") + ")"
	inside, anchored := strings.CutPrefix(pattern, "^")
	switch {
	case strings.ContainsAny(inside, "^|") && anchored, strings.Contains(pattern, "^") && !anchored:
		return "" // what the anchor holds for is not said in front
	case anchored:
		return ahead + inside
	}
	return ahead + "[^]*(?:" + pattern + ")"
}

// formats are regular expressions for the string formats that libraries emit. They may be narrower than the format,
// never wider: no leap days, bounded numbers of characters, so that a model does not get lost in a host name.
var formats = func() map[string]string {
	const (
		day = `(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|` +
			`02-(?:0[1-9]|1[0-9]|2[0-8]))`
		date  = `[0-9]{4}-` + day
		zone  = `(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])`
		clock = `(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?` + zone
		n     = `[0-9]{1,9}`
		days  = `(?:` + n + `Y(?:` + n + `M)?(?:` + n + `D)?|` + n + `M(?:` + n + `D)?|` + n + `D)`
		hours = `T(?:` + n + `H(?:` + n + `M)?(?:` + n + `S)?|` + n + `M(?:` + n + `S)?|` + n + `S)`
		label = `[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?`
		host  = label + `(?:\.` + label + `){0,4}`
		octet = `(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
		hex   = `[0-9A-Fa-f]`
		group = hex + `{1,4}`
		path  = `(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%` + hex + `{2})*`
	)
	ipv6 := []string{`(?:` + group + `:){7}` + group, `(?:` + group + `:){1,7}:`, `:(?::` + group + `){1,7}`}
	for i := 1; i < 7; i++ { // i groups before the gap and up to 7-i after it
		ipv6 = append(ipv6, strings.Repeat(group+`:`, i)+`(?::`+group+`){1,`+string(rune('0'+7-i))+`}`)
	}
	uri := `[A-Za-z][A-Za-z0-9+.-]{0,15}://` + host + `(?::[0-9]{1,4})?` +
		`(?:/` + path + `)?(?:\?` + path + `)?(?:#` + path + `)?`
	uuid := hex + `{8}-` + hex + `{4}-[1-8]` + hex + `{3}-[89abAB]` + hex + `{3}-` + hex + `{12}`
	out := map[string]string{
		"date": date, "time": clock, "date-time": date + `T` + clock,
		"duration": `P(?:` + n + `W|` + days + `(?:` + hours + `)?|` + hours + `)`,
		"uuid":     uuid, "guid": uuid, "hostname": host,
		"email": `[A-Za-z0-9_+-]{1,20}(?:\.[A-Za-z0-9_+-]{1,20}){0,2}@` + host + `\.[A-Za-z]{2,18}`,
		"ipv4":  octet + `(?:\.` + octet + `){3}`, "ipv6": strings.Join(ipv6, "|"), "uri": uri, "url": uri,
	}
	segment := `(?:[A-Za-z0-9._!$&'()*+,;=:@-]|%` + hex + `{2}){1,40}`
	reference := `(?:` + uri + `|/?` + segment + `(?:/` + segment + `){0,8}(?:\?` + path + `)?(?:#` + path + `)?)`
	variable := `\{[A-Za-z0-9_]{1,20}\}`
	pointer := `(?:/(?:[A-Za-z0-9._-]|~[01]){0,40}){0,12}`
	out["uri-reference"], out["iri"], out["iri-reference"] = reference, uri, reference
	out["uri-template"] = `(?:` + uri + `|(?:/(?:[A-Za-z0-9._-]{1,40}|` + variable + `)){1,8})`
	out["json-pointer"], out["relative-json-pointer"] = pointer, `(?:0|[1-9][0-9]{0,3})(?:#|`+pointer+`)`
	out["idn-hostname"], out["idn-email"] = host, out["email"]
	out["regex"] = `\^?(?:[A-Za-z0-9_ -]|\\[dws.]|\[[A-Za-z0-9]{1,20}\][+*?]?){0,40}\$?`
	for k, v := range out {
		out[k] = `^(?:` + v + `)$`
	}
	return out
}()
