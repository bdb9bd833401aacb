// What a person sees: a header, a line for each step, and a bar with the time left. Lines go to
// `out`. The bar goes to `err`, and only where that is a terminal, so that a redirected run is
// plain lines.

import { SingleBar } from 'cli-progress';
import pc from 'picocolors';
import { formatBytes } from '../format.js';
import type { StepMetrics, StepResources } from '../rank/events.js';
import { spanText } from '../times.js';
import { printable } from './printable.js';
import { stepLine } from './step-line.js';
import { StepPace } from './step-pace.js';

export interface TerminalStream {
  write(text: string): unknown;
  readonly isTTY?: boolean;
  /** The width in characters, where it is a terminal. */
  readonly columns?: number;
}

export interface TerminalOptions {
  readonly out: TerminalStream;
  readonly err: TerminalStream & NodeJS.WritableStream;
  /** Whether to print nothing but failures. */
  readonly isQuiet: boolean;
  /** The environment. NO_COLOR, set to any text that is not empty, turns colors off. */
  readonly env: NodeJS.ProcessEnv;
  readonly steps: number;
  /** See StepPaceOptions. */
  readonly logEvery?: number | undefined;
  readonly now?: () => number;
}

/** Clears the line of the bar; the next update draws the bar anew below. */
const CLEAR_LINE = '\r\u001b[2K';

/** Making tokens of so many bytes takes GPT-2's tokenizer ten seconds. */
const LONG_BYTES = 64 * 2 ** 20;

/** The width of the names in the header. */
const HEAD = 8;

const SAVE_CURSOR = '\u001b7';
const RESTORE_CURSOR = '\u001b8';

export class Terminal {
  readonly #options: TerminalOptions;
  readonly #colors: ReturnType<typeof pc.createColors>;
  readonly #errColors: ReturnType<typeof pc.createColors>;
  readonly #warnings = new Set<string>();
  readonly #pace: StepPace;
  #bar: SingleBar | undefined;
  /** The last step. */
  #step = 0;
  /** Whether the line of the cursor tells what is being done. */
  #isDoing = false;
  /** The last tenth of the data that is tokenized. */
  #tenth = -1;

  constructor(options: TerminalOptions) {
    this.#options = options;
    const { out, err, env, steps, logEvery, now } = options;
    this.#pace = new StepPace({ steps, logEvery, now });
    this.#colors = pc.createColors(out.isTTY === true && !env.NO_COLOR);
    this.#errColors = pc.createColors(err.isTTY === true && !env.NO_COLOR);
  }

  /** Prints the header and, on a terminal, starts the bar. */
  header(lines: readonly string[]): void {
    if (this.#options.isQuiet) {
      return;
    }
    const { out, err, steps } = this.#options;
    const width = out.isTTY === true ? out.columns : undefined;
    for (const line of lines.flatMap((text) => fitted(text, width))) {
      this.#line(`${this.#colors.dim(line.slice(0, HEAD))}${line.slice(HEAD)}`);
    }
    if (err.isTTY !== true) {
      return;
    }
    this.#bar = this.#makeBar('{value}/{total} | {left}{doing}');
    this.#bar.start(steps, 0, { doing: '', left: 'starting' });
  }

  /**
   * Shows the progress of something before the first step: on a terminal, a bar until it is done.
   */
  progress(what: string, done: number, total: number): void {
    this.#progress(`${done}/${total} | ${what}`, done, total);
  }

  /**
   * Shows how many bytes of some data have become tokens. Elsewhere than on a terminal, long work
   * has a line at its beginning and at each tenth.
   */
  tokenizing(name: string, done: number, total: number): void {
    this.#bytes(`tokens of ${name}`, done, total);
  }

  /** Shows how many bytes of a model have come, as tokenizing does. */
  downloading(name: string, done: number, total: number): void {
    this.#bytes(name, done, total);
  }

  /** Shows how many bytes of what is pushed have been sent, as tokenizing does. */
  uploading(name: string, done: number, total: number): void {
    this.#bytes(`to ${name}`, done, total);
  }

  /** Shows how many bytes of some data have become vectors, as tokenizing does. */
  embedding(name: string, done: number, total: number): void {
    this.#bytes(`vectors of ${name}`, done, total);
  }

  #bytes(name: string, done: number, total: number): void {
    const what = `${formatBytes(done)} of ${formatBytes(total)} | ${name}`;
    this.#progress(what, done, total);
    const { err, isQuiet } = this.#options;
    const tenth = total < LONG_BYTES ? -1 : Math.floor((10 * done) / total);
    if (!isQuiet && err.isTTY !== true && (done === 0 || tenth > this.#tenth) && tenth >= 0) {
      err.write(`${what}\n`);
    }
    this.#tenth = tenth;
  }

  /** Shows, beside the bar of steps, the batches of an evaluation for which the steps wait. */
  evaluating(done: number, total: number): void {
    this.#bar?.update({ doing: done < total ? ` | evaluating ${done}/${total}` : '' });
  }

  #progress(what: string, done: number, total: number): void {
    if (this.#options.isQuiet || this.#options.err.isTTY !== true) {
      return;
    }
    if (this.#bar === undefined) {
      this.close();
      this.#bar = this.#makeBar('{eta_formatted} left | {what}');
      this.#bar.start(total, 0, { what });
    }
    this.#bar.update(done, { what });
    if (done >= total) {
      this.close();
    }
  }

  /**
   * Shows what is done while nothing else is shown: on a terminal, a line until something is, or
   * beside the bar of steps that are still to come.
   */
  doing(what: string): void {
    const { err, isQuiet, steps } = this.#options;
    if (isQuiet || err.isTTY !== true) {
      return;
    }
    if (this.#bar !== undefined && this.#step < steps) {
      this.#bar.update({ doing: ` | ${what}` });
      return;
    }
    this.close();
    err.write(this.#errColors.dim(`${what} ...`));
    this.#isDoing = true;
  }

  #makeBar(rest: string): SingleBar {
    return new SingleBar({
      format: ` {bar} {percentage}% | ${rest}`,
      barsize: 20,
      barCompleteChar: '=',
      barIncompleteChar: '-',
      stream: withoutCursorMemory(this.#options.err),
      hideCursor: null,
      linewrap: true, // else the terminal cuts step lines, too
      clearOnComplete: true,
      etaBuffer: 20,
    });
  }

  step(metrics: StepMetrics, resources: StepResources): void {
    if (this.#options.isQuiet) {
      return;
    }
    const { out, steps } = this.#options;
    const { step, skipped } = metrics;
    this.#step = step;
    const pace = this.#pace.add(metrics);
    if (pace.isDue) {
      const width = out.isTTY === true ? out.columns : undefined;
      const line = stepLine(metrics, resources, { steps, width, pace });
      this.#line(skipped ? this.#colors.yellow(line) : line);
    }
    this.#bar?.update(step, { doing: '', left: `${spanText(pace.leftMs)} left` });
  }

  /** Prints text that the model made: the prompt dimmed, and the rest as it is. */
  sample(prompt: string, text: string): void {
    if (this.#options.isQuiet) {
      return;
    }
    this.#line(`\n${this.#colors.dim(prompt)}${printable(text)}\n`);
    this.#bar?.update({ doing: '' });
  }

  /**
   * Prints a warning, once.
   * @returns whether it is the first time
   */
  warn(text: string): boolean {
    if (this.#warnings.has(text)) {
      return false;
    }
    this.#warnings.add(text);
    const { err, isQuiet } = this.#options;
    if (!isQuiet) {
      this.#clearLine();
      err.write(`${this.#errColors.yellow('warning:')} ${text}\n`);
    }
    return true;
  }

  note(text: string): void {
    if (!this.#options.isQuiet) {
      this.#line(text);
    }
  }

  /** Prints a failure, even when quiet. */
  failure(message: string): void {
    this.close();
    this.#options.err.write(`${this.#errColors.red('error:')} ${message}\n`);
  }

  /** Takes away the bar, or what is being done. Idempotent. */
  close(): void {
    if (this.#isDoing) {
      this.#clearLine();
    }
    this.#bar?.stop();
    this.#bar = undefined;
  }

  #line(text: string): void {
    this.#clearLine();
    this.#options.out.write(`${text}\n`);
  }

  /** Makes room for a line; the bar draws itself anew below it. */
  #clearLine(): void {
    if (this.#bar !== undefined || this.#isDoing) {
      this.#options.err.write(CLEAR_LINE);
      this.#isDoing = false;
    }
  }
}

/** The lines that a line of the header takes where it is wider than the terminal. */
function fitted(line: string, width = Number.POSITIVE_INFINITY): string[] {
  const lines: string[] = [];
  let rest = line;
  while (rest.length > width && width > 2 * HEAD) {
    const space = rest.lastIndexOf(' ', width);
    const end = space > HEAD ? space : width; // a path may be longer than a line
    lines.push(rest.slice(0, end));
    rest = `${' '.repeat(HEAD)}${rest.slice(end).trimStart()}`;
  }
  return [...lines, rest];
}

/**
 * A stream without the cursor's memory. The library saves the cursor when a bar starts and goes
 * back there when it stops, which would put what follows on top of the lines printed since.
 */
function withoutCursorMemory(stream: NodeJS.WritableStream): NodeJS.WritableStream {
  const write = (text: string) =>
    text === SAVE_CURSOR || text === RESTORE_CURSOR || stream.write(text);
  return Object.create(stream, { write: { value: write } }) as NodeJS.WritableStream;
}
