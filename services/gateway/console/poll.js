// Asking again: every few seconds, not at all while the page is hidden, less often while it fails.

const EVERY_MS = 5000;
const LONGEST_MS = 60000;

export class Poll {
  /** `ask` answers a promise; `failed(error, nextMs)` is told when it is broken. */
  constructor(ask, failed) {
    this.ask = ask;
    this.failed = failed;
    this.failures = 0;
    this.turn = 0;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.pause();
      else if (this.running) this.now();
    });
  }

  start() {
    this.running = true;
    return this.now();
  }

  stop() {
    this.running = false;
    this.pause();
  }

  pause() {
    clearTimeout(this.timer);
    this.turn += 1;
  }

  /** At once; whatever an earlier question still brings in is then old. */
  async now() {
    this.pause();
    const turn = this.turn;
    let wait = EVERY_MS;
    try {
      await this.ask(() => turn === this.turn);
      this.failures = 0;
    } catch (error) {
      if (turn !== this.turn) return;
      this.failures += 1;
      wait = Math.min(LONGEST_MS, EVERY_MS * 2 ** this.failures);
      this.failed(error, wait);
    }
    if (this.running && turn === this.turn && !document.hidden) this.timer = setTimeout(() => this.now(), wait);
  }
}
