// Shortcuts, and the sheet that lists them.

import { $, element } from './dom.js';

const mac = /Mac|iPhone|iPad/.test(navigator.platform);
const ctrl = mac ? '⌘' : 'Ctrl+';

// wire makes the keys work. acts: {search, newChat, stop, editLast}; each reports false if it has nothing to do.
export function wire(acts) {
  const sheet = [
    ['Enter', 'send the message'], ['Shift+Enter', 'begin a new line'],
    ['↑ in an empty box', 'edit the last message'],
    ['Escape', 'stop the answer, or close what is open'], [`${ctrl}K`, 'search conversations'],
    [`${ctrl}Shift+O`, 'new conversation'], [`${ctrl}/`, 'this list'],
  ];
  for (const [key, what] of sheet) {
    const row = element('div');
    const dt = element('dt');
    dt.append(element('kbd', '', key));
    row.append(dt, element('dd', '', what));
    $('keys-list').append(row);
  }
  const show = () => $('keys-dialog').showModal();
  $('open-keys').addEventListener('click', show);
  $('keys-close').addEventListener('click', () => $('keys-dialog').close());

  document.addEventListener('keydown', (e) => {
    if (e.isComposing || document.querySelector('dialog[open]')) return; // a dialog closes itself
    const command = (e.ctrlKey || e.metaKey) && !e.altKey;
    const key = e.key.toLowerCase();
    if (command && !e.shiftKey && key === 'k') {
      e.preventDefault();
      acts.search();
    } else if (command && e.shiftKey && key === 'o') {
      e.preventDefault();
      acts.newChat();
    } else if (command && key === '/') {
      e.preventDefault();
      show();
    } else if (e.key === 'Escape') {
      acts.stop();
    } else if (e.key === 'ArrowUp' && e.target === $('input') && !$('input').value && acts.editLast()) {
      e.preventDefault();
    }
  });
}
