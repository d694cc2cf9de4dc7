// Images of messages: those that wait for the next one, and those that are shown in the conversation.

import { button, element } from './dom.js';

const longest = 2048; // pixels of a side; more than models look at, and browsers have little room for conversations
const most = 8; // images of a message

const read = (file) => new Promise((done, fail) => {
  const r = new FileReader();
  r.onload = () => done(r.result);
  r.onerror = () => fail(r.error);
  r.readAsDataURL(file);
});

// dataURL is an image file as a data URL, made smaller if it is very large.
async function dataURL(file) {
  const bitmap = await createImageBitmap(file);
  const scale = longest / Math.max(bitmap.width, bitmap.height);
  if (scale >= 1) return read(file);
  const canvas = element('canvas');
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL('image/jpeg', 0.9);
}

// thumbnail is a small image that a press shows large.
export function thumbnail(url, name) {
  const img = element('img', 'thumbnail');
  img.src = url;
  img.alt = name;
  const b = button('', () => {
    const box = document.getElementById('lightbox');
    document.getElementById('large').src = url;
    document.getElementById('large').alt = name;
    box.showModal();
  });
  b.className = 'picture';
  b.setAttribute('aria-label', `Show ${name} large`);
  b.append(img);
  return b;
}

// Waiting is the images that go with the next message.
export class Waiting {
  constructor(box) {
    this.box = box;
    this.list = []; // {url, name}
  }

  // add takes an image file and returns what is wrong with it, '' for nothing.
  async add(file) {
    if (this.list.length >= most) return `A message has at most ${most} images.`;
    try {
      this.list.push({ url: await dataURL(file), name: file.name || 'image' });
    } catch {
      return `${file.name} cannot be read as an image.`;
    }
    this.draw();
    return '';
  }

  // take returns the images and forgets them.
  take() {
    const list = this.list;
    this.put([]);
    return list;
  }

  put(list) {
    this.list = list;
    this.draw();
  }

  draw() {
    this.box.hidden = !this.list.length;
    this.box.replaceChildren(...this.list.map((image, i) => {
      const li = element('li');
      li.append(thumbnail(image.url, image.name), button('Remove', () => {
        this.put(this.list.filter((_, j) => j !== i));
      }));
      return li;
    }));
  }
}
