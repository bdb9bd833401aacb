// This trains a small GPT-2 the same way with and without offload.

import { AdamW, Gpt2, type Gpt2Config, type Module, type Optimizer } from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { type Backend, Device, mean } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import * as kit from '../../../../tooling/test-kit/gpt2.ts';

/** The small GPT-2 with dropout. */
export const TINY: Partial<Gpt2Config> = {
  ...kit.TINY,
  embd_pdrop: 0.1,
  attn_pdrop: 0.1,
  resid_pdrop: 0.1,
};

const SEQ = 8;

export interface Run {
  readonly device: Device;
  readonly model: Module;
  readonly optimizer: Optimizer<object>;
}

/** Returns the token ids of a batch, and the token that follows each. */
export function tokens(step: number, rows: number) {
  return kit.tokens(step, rows, SEQ, 37);
}

/** Trains one step and returns its loss. */
export async function trainStep(run: Run, step: number, rows = 4): Promise<number> {
  const { device, model, optimizer } = run;
  const loss = await device.scope(async () => {
    device.random.begin({ step, rowOffset: 0 });
    const { ids, targets } = tokens(step, rows);
    const [tokenIds, next] = [ids, targets].map((values) => device.tensor(values, [rows, SEQ]));
    const result = mean(await model.call(tokenIds, { targets: next }));
    await result.backward();
    return result.item();
  });
  await optimizer.step();
  optimizer.zeroGrad();
  return loss;
}

export interface RunOptions {
  readonly backend?: Backend;
  readonly config?: Partial<Gpt2Config>;
  readonly offload?: OffloadOptions;
  readonly makeOptimizer?: (model: Module) => Optimizer<object>;
}

/** Begins a new run. Without `offload` the model stays on its device. */
export function begin(options: RunOptions = {}): Run {
  const device = new Device(options.backend ?? createReferenceBackend(), { seed: 7 });
  const gpt2 = new Gpt2(device, { ...TINY, ...options.config }, { seed: 3 });
  const model = options.offload === undefined ? gpt2 : new OffloadModel(gpt2, options.offload);
  const make = options.makeOptimizer ?? ((m) => new AdamW(m.parameters(), { lr: 1e-2 }));
  return { device, model, optimizer: make(model) };
}

/** Returns the losses of `steps` steps. */
export async function losses(run: Run, steps: number, rows?: number): Promise<number[]> {
  const found: number[] = [];
  for (let step = 0; step < steps; step++) {
    found.push(await trainStep(run, step, rows));
  }
  return found;
}
