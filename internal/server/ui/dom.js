// Small helpers for elements, the clipboard, files and numbers.

export const $ = (id) => document.getElementById(id);

export function element(tag, name, text) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text) e.textContent = text;
  return e;
}

export function button(label, act, name) {
  const b = element('button', name, label);
  b.type = 'button';
  b.addEventListener('click', act);
  return b;
}

// copy puts text on the clipboard. Browsers allow it to pages from this machine or over TLS only; elsewhere the old way
// still works.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element('textarea', 'hidden');
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  if (!done) throw new Error('refused');
  return undefined;
}

// copyButton is a button that says whether copying worked.
export function copyButton(text) {
  const b = button('Copy', async () => {
    try {
      await copy(text());
      b.textContent = 'Copied';
    } catch {
      b.textContent = 'Not allowed';
    }
    setTimeout(() => { b.textContent = 'Copy'; }, 1500);
  });
  return b;
}

// download gives the person a file.
export function download(name, ext, type, text) {
  const a = element('a');
  a.href = URL.createObjectURL(new Blob([text], { type }));
  a.download = (name.replace(/[^\p{L}\p{N} _-]+/gu, '').trim().slice(0, 60) || 'conversation') + ext;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}

export function bytes(n) {
  if (n >= 1e9) return (n / 1e9).toFixed(1) + ' GB';
  return n >= 1e6 ? Math.round(n / 1e6) + ' MB' : Math.ceil(n / 1e3) + ' kB';
}

// count is a number with thousands apart: 32,768.
export const count = (n) => n.toLocaleString('en');

export const newID = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
