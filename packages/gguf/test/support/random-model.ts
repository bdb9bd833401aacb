// Models with random values in every tensor, norms and biases too: what is stored in another's
// place is noticed.
import { fromF32Array } from '@shardweave/dtypes';
import {
  type HostTensor,
  type LanguageModel,
  makeModel,
  modelConfigText,
  parseModelConfig,
  stateDict,
} from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { configTextOf, type PreName, tokenizerText } from './hub-models.ts';

let backend: ReturnType<typeof createCpuBackend> | undefined;

/** The texts and the state of a model, without having trained it. */
export async function randomModel(fields: object, pre: PreName = 'qwen2') {
  const config = parseModelConfig(JSON.stringify(fields));
  const state = new Map<string, HostTensor>();
  let seed = 7;
  const random = () => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed / 2_147_483_647 - 0.5;
  };
  backend ??= createCpuBackend({ threads: 1 });
  const device = new Device(await backend);
  const model: LanguageModel = makeModel(device, config, { seed: 1 });
  for (const [name, tensor] of await stateDict(model)) {
    const values = Float32Array.from({ length: tensor.data.byteLength / 4 }, random);
    state.set(name, { ...tensor, data: fromF32Array(values, 'f32') });
  }
  model.dispose();
  device.dispose();
  const texts = new Map([
    ['config.json', modelConfigText(config)],
    ['tokenizer.json', tokenizerText(pre)],
    ['tokenizer_config.json', configTextOf(pre)],
  ]);
  return { config, texts, state };
}
