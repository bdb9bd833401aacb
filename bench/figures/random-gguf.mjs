// A GGUF file of a model's shape whose matrices are random blocks, so that a model of any size is
// there in the time that its bytes take to be written.

import { randomFillSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { BLOCK_SIZES } from '../../packages/dtypes/dist/blocks.js';
import { ggufFile, modelGguf } from '../../packages/gguf/dist/index.js';
import { openGguf } from '../../packages/gguf/dist/read.js';
import { makeModel, parseModelConfig } from '../../packages/nn/dist/index.js';
import { createCpuBackend } from '../../packages/tensor-core/dist/cpu.js';
import { Device } from '../../packages/tensor-core/dist/index.js';

/** How many blocks are made, and then written again and again. */
const BLOCKS = 4096;

/**
 * The bytes of the file, with the tests' tokenizer.
 *
 * @param {string} configText a decoder's config.json
 * @param {keyof typeof BLOCK_SIZES} type that of the layers' matrices; the token table is in q8_0
 */
export async function randomGguf(configText, type) {
  const config = JSON.parse(configText);
  const { metadata, tensors } = await headerOf({ ...config, num_hidden_layers: 1 });
  const key = `${config.model_type}.block_count`;
  metadata.set(key, { type: 'u32', value: config.num_hidden_layers });
  const layers = Array.from({ length: config.num_hidden_layers }, (_, layer) => layer);
  const all = [...tensors.values()].flatMap(({ name, shape }) => {
    const tensor = (own) => ({
      name: own,
      shape,
      ...contentOf(shape, isTable(own) ? 'q8_0' : type),
    });
    return name.startsWith('blk.0.')
      ? layers.map((layer) => tensor(name.replace('blk.0.', `blk.${layer}.`)))
      : [tensor(name)];
  });
  return ggufFile(metadata, all).pieces();
}

const isTable = (name) => name === 'token_embd.weight' || name === 'output.weight';

/** The header of the file of a model of zeros, of which no tensor is read. */
async function headerOf(config) {
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const text = JSON.stringify(config);
  const model = makeModel(device, parseModelConfig(text), { deferInit: true });
  const state = model.namedParameters().map(([name, { shape, size }]) => {
    return [name, { dtype: 'bf16', shape, read: async () => new Uint8Array(size * 2) }];
  });
  const tokenizer = ['tokenizer.json', 'tokenizer_config.json'].map((name) => {
    return [
      name,
      readFileSync(new URL(`../../tooling/tokenizer/${name}`, import.meta.url), 'utf8'),
    ];
  });
  const texts = new Map([['config.json', text], ...tokenizer]);
  const file = modelGguf({ texts, state: new Map(state) }, { type: 'f16', name: 'random' });
  const pieces = file.pieces();
  const { value: header } = await pieces.next();
  device.dispose();
  await backend.dispose();
  const read = async (into, { offset }) => {
    into.fill(0);
    into.set(header.subarray(offset, offset + into.length));
  };
  const { metadata, tensors } = await openGguf({ byteLength: file.byteLength, read });
  return { metadata: new Map(metadata), tensors };
}

function contentOf(shape, type) {
  const size = shape.reduce((product, length) => product * length, 1);
  if (shape.length === 1) {
    return { type: 'f32', pieces: () => [new Uint8Array(new Float32Array(size).fill(1).buffer)] };
  }
  const { elements, bytes } = BLOCK_SIZES[type];
  const data = randomFillSync(new Uint8Array(BLOCKS * bytes));
  const view = new DataView(data.buffer);
  const places = type === 'q6_K' ? [208] : type.endsWith('_0') ? [0] : [0, 2];
  for (let at = 0; at < data.length; at += bytes) {
    for (const place of places) {
      view.setUint16(at + place, 0x0800 | (view.getUint8(at + place) & 0xff), true); // about 2^-13
    }
  }
  return {
    type,
    *pieces() {
      let left = (size / elements) * bytes;
      for (; left > 0; left -= data.length) {
        yield left < data.length ? data.subarray(0, left) : data;
      }
    },
  };
}
