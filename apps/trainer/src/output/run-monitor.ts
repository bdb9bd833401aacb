// Follows a run from the outside: shows what the ranks tell and writes it under --out.

import type { RankEvent, RankReady, RankReport } from '../rank/events.js';
import type { RunConfig } from '../run-config.js';
import { headerLines } from './header.js';
import { RunDirectory } from './run-directory.js';
import type { Terminal } from './terminal.js';

export class RunMonitor {
  readonly #config: RunConfig;
  readonly #terminal: Terminal;
  readonly #ready: RankReady[] = [];
  readonly #reports: RankReport[] = [];
  /** Events of rank 0 that overtook another rank's being ready. */
  #early: RankEvent[] = [];
  #directory: RunDirectory | undefined;
  #steps = 0;

  constructor(config: RunConfig, terminal: Terminal) {
    this.#config = config;
    this.#terminal = terminal;
  }

  /** Steps shown so far. */
  get steps(): number {
    return this.#steps;
  }

  readonly handle = (event: RankEvent): void => {
    switch (event.type) {
      case 'ready':
        this.#ready[event.ready.rank] = event.ready;
        if (this.#isReady) {
          this.#start();
        }
        return;
      case 'step':
        if (!this.#isReady) {
          this.#early.push(event);
          return;
        }
        this.#steps = event.metrics.step;
        this.#directory?.step(event.metrics);
        this.#terminal.step(event.metrics, event.resources);
        return;
      case 'sample':
        this.#terminal.sample(event.prompt, event.text);
        return;
      case 'report':
        this.#reports[event.report.rank] = event.report;
    }
  };

  /** Call when all ranks are done. */
  finish(): void {
    this.#terminal.close();
    if (this.#directory === undefined) {
      return;
    }
    const { model, ranks, strategy, precision } = this.#config;
    const name = model.kind === 'preset' ? model.name : model.path;
    const title = `${name}, ${strategy} on ${ranks} rank${ranks === 1 ? '' : 's'}, ${precision}`;
    this.#directory.finish(this.#ready, this.#reports, title);
    this.#terminal.note(`The run is in ${this.#config.outDir}.`);
  }

  /** Call when the run ended early; what was written stays. */
  close(): void {
    this.#terminal.close();
    this.#directory?.close();
  }

  get #isReady(): boolean {
    return Object.keys(this.#ready).length === this.#config.ranks;
  }

  #start(): void {
    if (this.#config.outDir !== undefined) {
      this.#directory = new RunDirectory(this.#config.outDir);
    }
    this.#terminal.header(headerLines(this.#config, this.#ready));
    const early = this.#early;
    this.#early = [];
    for (const event of early) {
      this.handle(event);
    }
  }
}
