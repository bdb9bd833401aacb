// Types of engines.mjs, which is plain JavaScript since Node 20 runs it as it is.
import type { Order, Outcome } from './program/run-order.ts';

export interface Engine {
  readonly name: string;
  /** The numbers of threads with which its devices are made. */
  readonly threads: readonly number[];
  run(order: Order): Promise<readonly Outcome[]>;
}

/** Opens an address, and returns what ends the browser. */
export type OpenBrowser = (url: string) => unknown;

export function findEngines(): Engine[];
export function ownNode(): Engine;
export function chromiumEngines(): Engine[];
export function anyBrowser(tell: OpenBrowser): Engine;
