// Tokenizes in a thread of its own. Large data takes minutes, in which the command still shows the
// progress and reacts to Ctrl-C.

import { parentPort, Worker, workerData } from 'node:worker_threads';
import { TrainerError, UsageError } from '../errors.js';
import { type Tokenized, type TokenJob, tokenize } from './tokenize.js';
import type { OnTokenized } from './writing-tools.js';

/** The data by which main.ts recognizes such a thread. */
interface ThreadData {
  readonly tokenJob: TokenJob;
}

type FromThread =
  | { readonly type: 'tokenized'; readonly done: number; readonly total: number }
  | { readonly type: 'done'; readonly made: Tokenized }
  | { readonly type: 'failed'; readonly message: string; readonly isUsage: boolean };

/** The time between reports of progress, which people could not see faster. */
const TELL_MS = 50;

export function isTokenizeThread(): boolean {
  return (workerData as Partial<ThreadData> | null)?.tokenJob !== undefined;
}

/** Does the work of the thread. */
export async function serveTokenizeThread(): Promise<void> {
  const tell = (message: FromThread) => parentPort!.postMessage(message);
  let toldMs = Number.NEGATIVE_INFINITY;
  try {
    const made = await tokenize((workerData as ThreadData).tokenJob, (done, total) => {
      if (performance.now() - toldMs > TELL_MS || done >= total) {
        toldMs = performance.now();
        tell({ type: 'tokenized', done, total });
      }
    });
    tell({ type: 'done', made });
  } catch (error) {
    const { message } = error as Error;
    tell({ type: 'failed', message, isUsage: error instanceof UsageError });
  }
}

export interface TokenizeInThreadOptions {
  /** The script that the thread runs; it calls serveTokenizeThread. */
  readonly entry: string;
  readonly onTokenized: OnTokenized;
  readonly signal: AbortSignal | undefined;
}

/**
 * @throws {TrainerError} where the thread fails
 * @throws {UsageError} where the data is at fault
 */
export async function tokenizeInThread(
  job: TokenJob,
  { entry, onTokenized, signal }: TokenizeInThreadOptions,
): Promise<Tokenized> {
  signal?.throwIfAborted();
  const thread = new Worker(entry, { workerData: { tokenJob: job } satisfies ThreadData });
  const stop = () => void thread.terminate();
  signal?.addEventListener('abort', stop, { once: true });
  let made: Tokenized | undefined;
  let failure: Error | undefined;
  try {
    await new Promise<void>((resolve) => {
      thread.on('message', (message: FromThread) => {
        if (message.type === 'tokenized') {
          onTokenized(message.done, message.total);
        } else if (message.type === 'done') {
          made = message.made;
        } else {
          const { message: text, isUsage } = message;
          failure = isUsage ? new UsageError(text) : new TrainerError(text);
        }
      });
      thread.on('error', (error) => {
        failure ??= error;
      });
      thread.on('exit', () => resolve());
    });
  } finally {
    signal?.removeEventListener('abort', stop);
  }
  signal?.throwIfAborted();
  if (failure !== undefined) {
    throw failure;
  }
  if (made === undefined) {
    throw new TrainerError('the thread that makes tokens of the data ended without a word.');
  }
  return made;
}
