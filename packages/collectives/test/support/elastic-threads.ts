// Threads of an elastic job over shared memory, which tests end and start.

import { once } from 'node:events';
import { join } from 'node:path';
import { type Transferable, Worker } from 'node:worker_threads';
import type { ShmElasticJob } from '@shardweave/collectives/elastic';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './bundle-program.js';
import { ElasticSpeaker } from './elastic-job.js';
import type { ThreadOrder } from './elastic-thread.js';

/** Bundles what a thread runs. */
export async function bundleThread(): Promise<string> {
  const script = join(newFolder(), 'elastic-thread.mjs');
  await bundleProgram(new URL('elastic-thread.ts', import.meta.url), script);
  return script;
}

/** One thread, and what it has said. */
export class ElasticThread extends ElasticSpeaker {
  readonly #worker: Worker;
  /** Resolves when it has ended, with its uncaught error. */
  readonly ended: Promise<Error | undefined>;

  constructor(script: string, job: ShmElasticJob) {
    super();
    const workerData = job.invite();
    this.#worker = new Worker(script, {
      workerData,
      transferList: workerData.ports as unknown as Transferable[], // the page's type, by name
      execArgv: [],
      resourceLimits: { maxOldGenerationSizeMb: 40 },
    });
    let failure: Error | undefined;
    this.#worker.on('error', (error) => {
      failure = error;
    });
    this.#worker.on('message', (word) => this.heard(word));
    this.ended = once(this.#worker, 'exit').then(
      () => failure,
      (error) => error,
    );
  }

  order(order: ThreadOrder): void {
    this.#worker.postMessage(order);
  }

  async terminate(): Promise<void> {
    await this.#worker.terminate();
  }
}
