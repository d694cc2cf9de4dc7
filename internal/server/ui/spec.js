// The speculation panel: what drafts gain while an answer streams.

const $ = (id) => document.getElementById(id);
const svg = 'http://www.w3.org/2000/svg';
const shown = 80; // passes in the chart

export class Panel {
  constructor() { this.begin(); }

  // begin forgets the answer before, but not how fast plain decoding is.
  begin() {
    this.passes = []; // tokens of each pass
    this.run = 0;     // accepted guesses since the last token of the model's own
    this.rate = 0;
    this.draw();
  }

  // tokens takes, for each new token, whether it was guessed. A pass ends with a token of the model's own.
  tokens(drafted) {
    for (const d of drafted) {
      if (d) { this.run++; continue; }
      this.passes.push(this.run + 1);
      this.run = 0;
    }
  }

  timings(t) {
    this.rate = t.predicted_per_second;
    if (t.plain_per_second) this.plain = t.plain_per_second;
    if (t.draft_n) this.accepted = t.draft_n_accepted / t.draft_n;
    else if (t.queued_ms !== undefined) this.accepted = undefined;
  }

  draw() {
    const n = this.passes.length;
    const mean = n ? this.passes.reduce((a, b) => a + b, 0) / n : 0;
    const num = (x, digits) => (x ? x.toFixed(digits) : '–');
    $('rate').textContent = num(this.rate, 1);
    $('plain').textContent = num(this.plain, 1);
    $('mean').textContent = num(mean, 2);
    $('accepted').textContent = this.accepted === undefined ? '–' : Math.round(100 * this.accepted) + ' %';
    const top = Math.max(this.rate || 0, this.plain || 0) || 1;
    $('rate-bar').style.width = 100 * (this.rate || 0) / top + '%';
    $('plain-bar').style.width = 100 * (this.plain || 0) / top + '%';

    const chart = $('chart');
    const last = this.passes.slice(-shown);
    const high = Math.max(4, ...last);
    chart.replaceChildren(...last.map((v, i) => {
      const bar = document.createElementNS(svg, 'rect');
      const h = 60 * v / high;
      bar.setAttribute('x', 240 - (last.length - i) * 3);
      bar.setAttribute('y', 64 - h);
      bar.setAttribute('width', 2);
      bar.setAttribute('height', h);
      return bar;
    }));
    chart.setAttribute('aria-label', n
      ? `${n} passes, ${mean.toFixed(2)} tokens each on average, ${Math.max(...this.passes)} at most`
      : 'No passes yet');
  }
}
