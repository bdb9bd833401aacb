// A model as it was before it was adapted, without a second copy of its weights.

import type { Module } from '../module.js';
import { loraLayers } from './apply-lora.js';

/**
 * Runs `body` with a model's adapters off: each adapted layer then computes what its base does, to
 * the bit. They are on again as soon as `body` is over, or has thrown. A model without adapters is
 * as it is.
 * @param model a model, wrapped or not
 */
export async function withoutAdapters<T>(model: Module, body: () => Promise<T>): Promise<T> {
  const layers = [...loraLayers(model).values()];
  const before = layers.map(({ isOn }) => isOn);
  for (const layer of layers) {
    layer.isOn = false;
  }
  try {
    return await body();
  } finally {
    for (const [i, layer] of layers.entries()) {
      layer.isOn = before[i]!;
    }
  }
}
