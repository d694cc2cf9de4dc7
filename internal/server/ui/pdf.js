// The text of a PDF file, in a worker: a file that takes too long or too much is ended with it. It reads what programs
// write for people to read (compressed objects, fonts with their mapping to Unicode), nothing scanned or encrypted.
// pdf.js, the usual library, has 1.7 MB (490 kB compressed), as much as the rest of the page.
// Files are hostile: everything that a file may claim has a limit.

const limits = {
  inflated: 100 << 20, // bytes of all streams
  text: 1 << 20, // characters of the result
  depth: 50, // of arrays and dictionaries in each other
  forms: 8, // of drawings in each other
  pages: 5000,
  codes: 1 << 17, // characters that a font maps
};

class Problem extends Error {}

let inflated = 0;

// --- values
// Numbers, booleans and null are themselves. A name is a string that begins with /, a text is {text} with a character
// for each byte, a dictionary is a Map, a reference is {ref}, a stream is {dict, data}, and anything else is {word}.

const space = /[\0\t\n\f\r ]/;
const border = /[\0\t\n\f\r ()<>[\]{}/%]/;

// Reader takes values out of a string of bytes.
class Reader {
  constructor(bytes, at = 0) {
    this.bytes = bytes;
    this.at = at;
  }

  skip() {
    const { bytes } = this;
    for (; this.at < bytes.length; this.at++) {
      const c = bytes[this.at];
      if (c === '%') while (this.at < bytes.length && !/[\r\n]/.test(bytes[this.at])) this.at++;
      else if (!space.test(c)) return;
    }
  }

  word() {
    const from = this.at;
    while (this.at < this.bytes.length && !border.test(this.bytes[this.at])) this.at++;
    return this.bytes.slice(from, this.at);
  }

  // value returns the next one, undefined at the end.
  value(depth = 0) {
    if (depth > limits.depth) throw new Problem('its values lie too deep in each other');
    this.skip();
    const { bytes } = this;
    const c = bytes[this.at];
    if (c === undefined) return undefined;
    if (c === '/') {
      this.at++;
      return '/' + this.word().replace(/#([0-9a-fA-F]{2})/g, (_, x) => String.fromCharCode(parseInt(x, 16)));
    }
    if (c === '(') return this.text();
    if (bytes.startsWith('<<', this.at)) {
      this.at += 2;
      const list = this.list('>>', depth);
      const dict = new Map();
      for (let i = 0; i + 1 < list.length; i += 2) if (typeof list[i] === 'string') dict.set(list[i], list[i + 1]);
      return dict;
    }
    if (c === '<') {
      const end = bytes.indexOf('>', this.at);
      const hex = bytes.slice(this.at + 1, end < 0 ? undefined : end).replace(/[^0-9a-fA-F]/g, '');
      this.at = end < 0 ? bytes.length : end + 1;
      return { text: (hex + '0').match(/../g)?.map((x) => String.fromCharCode(parseInt(x, 16))).join('') ?? '' };
    }
    if (c === '[') {
      this.at++;
      return this.list(']', depth);
    }
    if (border.test(c)) { // one that closes nothing
      this.at += bytes.startsWith('>>', this.at) ? 2 : 1;
      return { word: c };
    }
    const word = this.word();
    if (/^[+-]?(\d+\.?\d*|\.\d+)/.test(word)) {
      const rest = bytes.slice(this.at, this.at + 40);
      const ref = /^\d+$/.test(word) && /^[\0\t\n\f\r ]+\d+[\0\t\n\f\r ]+R(?!\w)/.exec(rest);
      if (ref) {
        this.at += ref[0].length;
        return { ref: Number(word) };
      }
      return parseFloat(word);
    }
    return { true: true, false: false, null: null }[word] ?? (word === 'null' ? null : { word });
  }

  list(end, depth) {
    const out = [];
    for (;;) {
      this.skip();
      if (this.at >= this.bytes.length) return out;
      if (this.bytes.startsWith(end, this.at)) {
        this.at += end.length;
        return out;
      }
      out.push(this.value(depth + 1));
    }
  }

  text() {
    const { bytes } = this;
    const out = [];
    let open = 1;
    for (this.at++; this.at < bytes.length; this.at++) {
      let c = bytes[this.at];
      if (c === '\\') {
        c = bytes[++this.at] ?? '';
        const octal = /^[0-7]{1,3}/.exec(bytes.slice(this.at, this.at + 3));
        if (octal) {
          this.at += octal[0].length - 1;
          c = String.fromCharCode(parseInt(octal[0], 8) & 255);
        } else if (c === '\r' || c === '\n') { // the line goes on
          if (c === '\r' && bytes[this.at + 1] === '\n') this.at++;
          continue;
        } else {
          c = { n: '\n', r: '\r', t: '\t', b: '\b', f: '\f' }[c] ?? c;
        }
      } else if (c === '(') {
        open++;
      } else if (c === ')' && --open === 0) {
        this.at++;
        break;
      }
      out.push(c);
    }
    return { text: out.join('') };
  }
}

// --- streams

const toBytes = (s) => Uint8Array.from(s, (c) => c.charCodeAt(0));

function toString(bytes) {
  const parts = [];
  for (let i = 0; i < bytes.length; i += 8192) parts.push(String.fromCharCode(...bytes.subarray(i, i + 8192)));
  return parts.join('');
}

// inflate unpacks what is there: some files end too early, or have something behind the end.
async function inflate(data) {
  const unpack = new DecompressionStream('deflate');
  const writer = unpack.writable.getWriter();
  writer.write(toBytes(data)).catch(() => {});
  writer.close().catch(() => {});
  const reader = unpack.readable.getReader();
  const parts = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      inflated += value.length;
      if (inflated > limits.inflated) throw new Problem('it unpacks to too much');
      parts.push(toString(value));
    }
  } catch (err) {
    if (err instanceof Problem) throw err;
  }
  return parts.join('');
}

function ascii85(data) {
  const out = [];
  let group = [];
  const put = (digits, n) => {
    let v = 0;
    for (const d of digits) v = v * 85 + d;
    for (let i = 0; i < n; i++) out.push(String.fromCharCode((v / 2 ** (24 - 8 * i)) & 255));
  };
  for (const c of data) {
    if (c === '~') break;
    if (c === 'z' && !group.length) out.push('\0\0\0\0');
    const d = c.charCodeAt(0) - 33;
    if (d < 0 || d > 84) continue;
    group.push(d);
    if (group.length === 5) {
      put(group, 4);
      group = [];
    }
  }
  if (group.length > 1) put([...group, 84, 84, 84, 84].slice(0, 5), group.length - 1);
  return out.join('');
}

// unpredict undoes what PNG does before compression; tables of objects are written so.
function unpredict(data, columns) {
  const width = columns + 1;
  let above = new Array(columns).fill(0);
  const out = [];
  for (let at = 0; at + 1 < data.length; at += width) {
    const kind = data.charCodeAt(at);
    const row = [];
    for (let i = 0; i < columns && at + 1 + i < data.length; i++) {
      const left = row[i - 1] ?? 0;
      const up = above[i] ?? 0;
      const corner = above[i - 1] ?? 0;
      const p = left + up - corner;
      const [a, b, c] = [Math.abs(p - left), Math.abs(p - up), Math.abs(p - corner)];
      const paeth = a <= b && a <= c ? left : b <= c ? up : corner;
      const guess = [0, left, up, (left + up) >> 1, paeth][kind] ?? 0;
      row.push((data.charCodeAt(at + 1 + i) + guess) & 255);
    }
    out.push(String.fromCharCode(...row));
    above = row;
  }
  return out.join('');
}

// --- the file

class File {
  constructor() {
    this.objects = new Map();
  }

  // get follows references.
  get(value) {
    for (let n = 0; value?.ref !== undefined && n < 10; n++) value = this.objects.get(value.ref) ?? null;
    return value?.ref === undefined ? value : null;
  }

  // entry is a value of a dictionary.
  entry(dict, name) {
    const d = this.get(dict);
    return this.get((d?.dict ?? d) instanceof Map ? (d.dict ?? d).get(name) : null);
  }

  // read finds all objects; those that come later in the file replace earlier ones.
  async read(bytes) {
    const start = /(?:^|[^\d])(\d{1,9})[\0\t\n\f\r ]+\d{1,5}[\0\t\n\f\r ]+obj/g;
    let encrypted = /trailer[\s\S]{0,2000}?\/Encrypt\b/.test(bytes);
    for (let m; (m = start.exec(bytes));) {
      const reader = new Reader(bytes, start.lastIndex);
      let value = reader.value();
      reader.skip();
      if (value instanceof Map && bytes.startsWith('stream', reader.at)) {
        let from = reader.at + 6;
        if (bytes[from] === '\r') from++;
        if (bytes[from] === '\n') from++;
        const length = value.get('/Length');
        let end = from + (typeof length === 'number' && length >= 0 ? length : bytes.length);
        if (!/^[\0\t\n\f\r ]*endstream/.test(bytes.slice(end, end + 20))) end = bytes.indexOf('endstream', from);
        if (end < 0) end = bytes.length;
        value = { dict: value, data: bytes.slice(from, end) };
        reader.at = end;
        if (value.dict.get('/Type') === '/XRef') encrypted ||= value.dict.has('/Encrypt');
      }
      this.objects.set(Number(m[1]), value);
      if (value?.dict?.get('/Type') === '/ObjStm') await this.unpack(value);
      start.lastIndex = Math.max(start.lastIndex, reader.at);
    }
    if (encrypted) throw new Problem('it is encrypted');
  }

  // unpack reads objects that lie in a stream.
  async unpack(stream) {
    const data = await this.decode(stream);
    const head = new Reader(data);
    const first = stream.dict.get('/First');
    for (let n = 0; n < stream.dict.get('/N'); n++) {
      const number = head.value();
      const at = head.value();
      if (typeof number !== 'number' || typeof at !== 'number') return;
      this.objects.set(number, new Reader(data, first + at).value());
    }
  }

  // decode is what a stream holds, '' if it is packed in a way that texts are not.
  async decode(stream) {
    if (!stream?.dict) return '';
    const many = (x) => (Array.isArray(x) ? x : x === null || x === undefined ? [] : [x]);
    const filters = many(this.entry(stream, '/Filter'));
    const params = many(this.entry(stream, '/DecodeParms'));
    let { data } = stream;
    for (const [i, f] of filters.slice(0, 4).entries()) {
      const filter = this.get(f);
      if (filter === '/FlateDecode' || filter === '/Fl') data = await inflate(data);
      else if (filter === '/ASCII85Decode' || filter === '/A85') data = ascii85(data);
      else if (filter === '/ASCIIHexDecode' || filter === '/AHx') data = new Reader('<' + data).value().text;
      else return '';
      const columns = this.entry(params[i], '/Columns') ?? 1;
      if (this.entry(params[i], '/Predictor') >= 10 && columns > 0 && columns < 1 << 16) data = unpredict(data, columns);
    }
    return data;
  }

  // pages lists the pages with what they use.
  pages() {
    const out = [];
    const seen = new Set();
    const walk = (node, resources) => {
      const page = this.get(node);
      if (!(page instanceof Map) || seen.has(page) || out.length >= limits.pages) return;
      seen.add(page);
      const own = this.get(page.get('/Resources')) ?? resources;
      const kids = this.get(page.get('/Kids'));
      if (Array.isArray(kids)) for (const k of kids) walk(k, own);
      else out.push({ page, resources: own });
    };
    const all = [...this.objects.values()];
    const root = all.findLast((o) => o instanceof Map && o.get('/Type') === '/Catalog');
    if (root) walk(root.get('/Pages'), null);
    if (!out.length) for (const o of all) if (o instanceof Map && o.get('/Type') === '/Page') walk(o, null);
    return out;
  }
}

// --- fonts

const glyphs = {
  space: ' ', exclam: '!', quotedbl: '"', numbersign: '#', dollar: '$', percent: '%', ampersand: '&', quotesingle: "'",
  quoteright: '’', quoteleft: '‘', parenleft: '(', parenright: ')', asterisk: '*', plus: '+', comma: ',', hyphen: '-',
  period: '.', slash: '/', zero: '0', one: '1', two: '2', three: '3', four: '4', five: '5', six: '6', seven: '7',
  eight: '8', nine: '9', colon: ':', semicolon: ';', less: '<', equal: '=', greater: '>', question: '?', at: '@',
  bracketleft: '[', backslash: '\\', bracketright: ']', asciicircum: '^', underscore: '_', grave: '`', braceleft: '{',
  bar: '|', braceright: '}', asciitilde: '~', endash: '–', emdash: '—', bullet: '•', ellipsis: '…', quotedblleft: '“',
  quotedblright: '”', quotesinglbase: '‚', quotedblbase: '„', guillemotleft: '«', guillemotright: '»', fi: 'fi',
  fl: 'fl', ff: 'ff', ffi: 'ffi', ffl: 'ffl', germandbls: 'ß', ae: 'æ', AE: 'Æ', oe: 'œ', OE: 'Œ', oslash: 'ø',
  Oslash: 'Ø', dotlessi: 'ı', lslash: 'ł', Lslash: 'Ł', Euro: '€', section: '§', degree: '°', copyright: '©',
  registered: '®', trademark: '™', minus: '−', multiply: '×', divide: '÷', plusminus: '±', mu: 'µ', nbspace: ' ',
  periodcentered: '·', dagger: '†', daggerdbl: '‡', exclamdown: '¡', questiondown: '¿', cent: '¢', sterling: '£',
  yen: '¥', paragraph: '¶', minute: '′', arrowright: '→', arrowleft: '←', infinity: '∞', lessequal: '≤',
  greaterequal: '≥', notequal: '≠', summation: '∑', integral: '∫', radical: '√', alpha: 'α', beta: 'β', gamma: 'γ',
  delta: 'δ', epsilon: 'ε', theta: 'θ', lambda: 'λ', pi: 'π', rho: 'ρ', sigma: 'σ', tau: 'τ', phi: 'φ', omega: 'ω',
};
const accents = {
  grave: '\u0300', acute: '\u0301', circumflex: '\u0302', tilde: '\u0303', macron: '\u0304', breve: '\u0306',
  dotaccent: '\u0307', dieresis: '\u0308', ring: '\u030a', hungarumlaut: '\u030b', caron: '\u030c', cedilla: '\u0327',
  ogonek: '\u0328',
};

// glyph is the character of a glyph's name, '' if it is not known.
function glyph(name) {
  const base = name.split('.')[0];
  if (glyphs[base]) return glyphs[base];
  if (/^[A-Za-z]$/.test(base)) return base;
  const code = /^(?:uni([0-9A-F]{4})|u([0-9A-F]{4,6}))$/.exec(base);
  if (code) return unicode(parseInt(code[1] ?? code[2], 16));
  const accent = /^([A-Za-z])([a-z]+)$/.exec(base);
  return accent && accents[accent[2]] ? (accent[1] + accents[accent[2]]).normalize('NFC') : '';
}

const unicode = (n) => (n > 0 && n <= 0x10ffff && (n < 0xd800 || n > 0xdfff) ? String.fromCodePoint(n) : '');
const number = (text) => [...text].reduce((n, c) => n * 256 + c.charCodeAt(0), 0);
const utf16 = (text) => new TextDecoder('utf-16be').decode(toBytes(text));

// mapping reads a table from codes to Unicode: {codes, bytes}, where bytes is how many of them a code has.
function mapping(source) {
  const codes = new Map();
  let bytes = 0;
  const put = (code, text) => {
    if (codes.size < limits.codes) codes.set(code, text);
  };
  const reader = new Reader(source);
  let stack = [];
  for (let v; (v = reader.value()) !== undefined;) {
    if (v?.word === undefined) {
      stack.push(v);
      continue;
    }
    if (v.word === 'endcodespacerange') bytes = Math.max(bytes, ...stack.map((x) => x?.text?.length ?? 0));
    if (v.word === 'endbfchar') {
      for (let i = 0; i + 1 < stack.length; i += 2) {
        if (stack[i]?.text && stack[i + 1]?.text) put(number(stack[i].text), utf16(stack[i + 1].text));
      }
    }
    if (v.word === 'endbfrange') {
      for (let i = 0; i + 2 < stack.length; i += 3) {
        const [from, to, first] = stack.slice(i, i + 3);
        if (!from?.text || !to?.text) continue;
        const low = number(from.text);
        for (let c = low; c <= number(to.text) && c - low < 1 << 16 && codes.size < limits.codes; c++) {
          if (Array.isArray(first)) put(c, utf16(first[c - low]?.text ?? ''));
          else if (first?.text) put(c, shift(first.text, c - low));
        }
      }
    }
    stack = [];
  }
  return { codes, bytes };
}

// shift is a text of UTF-16 whose last unit is moved on.
function shift(text, by) {
  const units = [...utf16(text)];
  const last = units.pop() ?? '';
  return units.join('') + unicode((last.codePointAt(0) ?? 0) + by);
}

class Font {
  async read(file, dict) {
    const wide = file.entry(dict, '/Subtype') === '/Type0';
    const encoding = file.entry(dict, '/Encoding');
    this.bytes = wide ? 2 : 1;
    this.widths = new Map();
    const { codes, bytes } = mapping(await file.decode(file.entry(dict, '/ToUnicode')));
    this.codes = codes;
    if (wide && bytes) this.bytes = Math.min(bytes, 4);
    if (wide) {
      const inner = file.get((file.entry(dict, '/DescendantFonts') ?? [])[0]);
      this.other = file.entry(inner, '/DW') ?? 1000;
      this.readWide(file, file.entry(inner, '/W') ?? []);
      const isUnicode = typeof encoding === 'string' && /UCS2|UTF16/.test(encoding);
      this.fallback = (code) => (isUnicode ? unicode(code) : '');
      return;
    }
    const first = file.entry(dict, '/FirstChar') ?? 0;
    const widths = file.entry(dict, '/Widths');
    this.other = file.entry(file.entry(dict, '/FontDescriptor'), '/MissingWidth') || 500;
    if (Array.isArray(widths)) widths.slice(0, 256).forEach((w, i) => this.widths.set(first + i, file.get(w)));
    const names = new Map(); // that differ from the base
    let at = 0;
    for (const d of file.entry(encoding, '/Differences') ?? []) {
      const v = file.get(d);
      if (typeof v === 'number') at = v;
      else if (typeof v === 'string') names.set(at++, glyph(v.slice(1)));
    }
    const base = typeof encoding === 'string' ? encoding : file.entry(encoding, '/BaseEncoding');
    const decoder = new TextDecoder(base === '/MacRomanEncoding' ? 'macintosh' : 'windows-1252');
    this.fallback = (code) => names.get(code) ?? (code > 31 ? decoder.decode(Uint8Array.of(code)) : '');
  }

  // readWide reads widths of a font with many characters: [first [w w w] first last w ...].
  readWide(file, list) {
    for (let i = 0; Array.isArray(list) && i + 1 < list.length;) {
      const from = file.get(list[i]);
      const next = file.get(list[i + 1]);
      if (Array.isArray(next)) {
        next.forEach((w, k) => { if (this.widths.size < limits.codes) this.widths.set(from + k, file.get(w)); });
        i += 2;
      } else {
        for (let c = from; c <= next && this.widths.size < limits.codes; c++) this.widths.set(c, file.get(list[i + 2]));
        i += 3;
      }
    }
  }

  // show is the text of a string and its width, in thousandths of the font's size, with how many codes and spaces it has.
  show(string) {
    let text = '';
    let width = 0;
    let spaces = 0;
    let count = 0;
    for (let i = 0; i < string.length; i += this.bytes) {
      const code = number(string.slice(i, i + this.bytes));
      text += this.codes.get(code) ?? this.fallback(code);
      const w = this.widths.get(code) ?? this.other;
      width += Number.isFinite(w) ? w : 0;
      if (code === 32 && this.bytes === 1) spaces++;
      count++;
    }
    return { text, width, spaces, count };
  }
}

// --- pages

const times = ([a, b, c, d, e, f], [g, h, i, j, k, l]) => [
  a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + l,
];

// Page puts together what is drawn: pieces on one line, with spaces where there are gaps, and lines where it moves on.
class Page {
  constructor(file) {
    this.file = file;
    this.parts = [];
    this.length = 0;
    this.end = null; // where the last piece ended: {x, y, size}
  }

  put(text, x, y, size, width) {
    if (text) {
      const last = this.end;
      if (last) {
        const gap = x - last.x;
        const down = Math.abs(y - last.y);
        const high = Math.max(size, last.size, 1e-6);
        if (down > 0.5 * high) this.add(down > 1.9 * high ? '\n\n' : '\n');
        else if (gap < -2 * high) this.add('\n');
        else if (gap > 0.17 * high && !/\s$/.test(this.parts.at(-1) ?? ' ') && !/^\s/.test(text)) this.add(' ');
      }
      this.add(text);
    }
    this.end = { x: x + width, y, size };
  }

  add(text) {
    this.length += text.length;
    if (this.length <= limits.text) this.parts.push(text);
  }

  async draw(content, resources, matrix, depth, fonts) {
    const { file } = this;
    const reader = new Reader(content);
    let ctm = matrix;
    let text = [1, 0, 0, 1, 0, 0];
    let line = text;
    let state = { font: null, size: 1, leading: 0, char: 0, word: 0, scale: 1, rise: 0 };
    const saved = [];
    const move = (x, y) => { line = text = times([1, 0, 0, 1, x, y], line); };
    const show = (value) => {
      if (!state.font || typeof value?.text !== 'string') return;
      const said = state.font.show(value.text);
      const all = times(text, ctm);
      const size = Math.abs(state.size) * Math.hypot(all[2], all[3]);
      const wide = (said.width / 1000 * state.size + said.count * state.char + said.spaces * state.word) * state.scale;
      this.put(said.text, all[4], all[5], size, wide * Math.hypot(all[0], all[1]));
      text = times([1, 0, 0, 1, wide, 0], text);
    };
    const numbers = (list, n) => (list.length >= n && list.slice(-n).every(Number.isFinite) ? list.slice(-n) : null);
    let args = [];
    for (let v; (v = reader.value()) !== undefined && this.length <= limits.text;) {
      if (v?.word === undefined) {
        args.push(v);
        if (args.length > 1000) args = [];
        continue;
      }
      const [a] = args.slice(-1);
      const six = numbers(args, 6);
      const two = numbers(args, 2);
      switch (v.word) {
        case 'q': if (saved.length < 1000) saved.push([ctm, { ...state }]); break;
        case 'Q': if (saved.length) [ctm, state] = saved.pop(); break;
        case 'cm': if (six) ctm = times(six, ctm); break;
        case 'BT': text = line = [1, 0, 0, 1, 0, 0]; break;
        case 'Tm': if (six) text = line = six; break;
        case 'Td': if (two) move(...two); break;
        case 'TD': if (two) { [, state.leading] = two; state.leading *= -1; move(...two); } break;
        case 'T*': move(0, -state.leading); break;
        case 'TL': if (Number.isFinite(a)) state.leading = a; break;
        case 'Tc': if (Number.isFinite(a)) state.char = a; break;
        case 'Tw': if (Number.isFinite(a)) state.word = a; break;
        case 'Tz': if (Number.isFinite(a)) state.scale = a / 100; break;
        case 'Tf': {
          if (Number.isFinite(a)) state.size = a;
          const dict = file.entry(file.entry(resources, '/Font'), args.at(-2));
          if (!dict) break;
          if (!fonts.has(dict)) {
            fonts.set(dict, new Font());
            await fonts.get(dict).read(file, dict);
          }
          state.font = fonts.get(dict);
          break;
        }
        case 'Tj': show(a); break;
        case "'": move(0, -state.leading); show(a); break;
        case '"': [state.word, state.char] = numbers(args.slice(0, -1), 2) ?? [0, 0]; move(0, -state.leading); show(a); break;
        case 'TJ':
          for (const x of Array.isArray(a) ? a : []) {
            if (typeof x === 'number') text = times([1, 0, 0, 1, -x / 1000 * state.size * state.scale, 0], text);
            else show(x);
          }
          break;
        case 'BI': { // a picture in the middle
          const end = /[\s]EI(?=[\s]|$)/g;
          end.lastIndex = reader.at;
          reader.at = end.exec(content) ? end.lastIndex : content.length;
          break;
        }
        case 'Do': {
          const form = file.entry(file.entry(resources, '/XObject'), a);
          if (file.entry(form, '/Subtype') !== '/Form' || depth >= limits.forms) break;
          const own = file.entry(form, '/Matrix');
          const inner = Array.isArray(own) && numbers(own, 6) ? times(own, ctm) : ctm;
          await this.draw(await file.decode(form), file.entry(form, '/Resources') ?? resources, inner, depth + 1, fonts);
          break;
        }
        default:
      }
      args = [];
    }
  }
}

// textOf is the text of a PDF file.
export async function textOf(data) {
  inflated = 0;
  const bytes = toString(new Uint8Array(data));
  if (!bytes.slice(0, 1024).includes('%PDF-')) throw new Problem('it is not a PDF file');
  const file = new File();
  await file.read(bytes);
  const fonts = new Map();
  const out = [];
  let length = 0;
  for (const { page, resources } of file.pages()) {
    const contents = file.get(page.get('/Contents'));
    const parts = [];
    for (const c of Array.isArray(contents) ? contents : [contents]) parts.push(await file.decode(file.get(c)));
    const drawn = new Page(file);
    await drawn.draw(parts.join('\n'), resources, [1, 0, 0, 1, 0, 0], 0, fonts);
    const text = drawn.parts.join('').replace(/[\0-\x08\x0b-\x1f\x7f]/g, '').replace(/[ \t]+$/gm, '').trim();
    if (text) out.push(text.replace(/[\ufb00-\ufb06]/g, (c) => c.normalize('NFKC')));
    length += drawn.length;
    if (length > limits.text) throw new Problem(`it has more than ${limits.text} characters`);
  }
  if (!out.length) throw new Problem('it has no text; its pages may be pictures');
  return out.join('\n\n');
}

// As a worker: a file comes in, its text or what is wrong goes out.
if (globalThis.WorkerGlobalScope) {
  onmessage = async (e) => {
    try {
      postMessage({ text: await textOf(e.data) });
    } catch (err) {
      postMessage({ problem: err instanceof Problem ? err.message : 'it is broken' });
    }
  };
}
