// transformers.js itself, as tooling/setup/transformers.mjs installs it, in Node and in a page.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

/** The page keeps what it loads where functions that run in it find it. */
const PAGE =
  '<!doctype html><title>transformers.js</title><link rel="icon" href="data:,">' +
  '<script type="module">window.transformers = import("/transformers.js");</script>';

declare global {
  interface Window {
    readonly transformers: Promise<Transformers>;
  }
}

/** The part of transformers.js that tests call. */
export interface Transformers {
  readonly env: {
    allowRemoteModels: boolean;
    allowLocalModels: boolean;
    localModelPath: string;
    readonly backends: {
      readonly onnx: { readonly wasm: { wasmPaths: string; numThreads: number } };
    };
  };
  pipeline(task: string, model: string, options: { readonly dtype: string }): Promise<Pipeline>;
}

type Pipeline = ((texts: readonly string[]) => Promise<unknown>) & { dispose(): Promise<void> };

/** What pipelines make of texts. */
export interface Judgement {
  /** The rows of feature extraction for all texts, padded to the longest. */
  readonly rows: { readonly dims: readonly number[]; readonly data: readonly number[] };
  /** The likeliest label of each text, and its probability. */
  readonly labels: readonly { readonly label: string; readonly score: number }[];
}

export interface JudgeOptions {
  readonly texts: readonly string[];
  /** The name of a type of files there. */
  readonly dtype: string;
}

/**
 * Runs both pipelines on the models `features` and `classes`. A page runs the text of this
 * function, so it uses nothing from outside of it.
 */
export async function judge(
  { pipeline }: Pick<Transformers, 'pipeline'>,
  { texts, dtype }: JudgeOptions,
): Promise<Judgement> {
  const extract = await pipeline('feature-extraction', 'features', { dtype });
  const found = (await extract(texts)) as { dims: number[]; data: Float32Array };
  const rows = { dims: found.dims, data: [...found.data] };
  await extract.dispose();
  const classify = await pipeline('text-classification', 'classes', { dtype });
  const labels = (await classify(texts)) as Judgement['labels'];
  await classify.dispose();
  return { rows, labels };
}

/** Loads it in Node, where models lie in a folder. */
export async function loadInNode(modules: string, models: string): Promise<Transformers> {
  const path = join(modules, '@huggingface/transformers/dist/transformers.node.mjs');
  const loaded = (await import(/* @vite-ignore */ pathToFileURL(path).href)) as Transformers;
  loaded.env.allowRemoteModels = false;
  loaded.env.localModelPath = `${models}/`;
  return loaded;
}

/** What a page needs to load it, by path on the server: the library and onnxruntime's modules. */
export function pageFiles(modules: string): Map<string, string | Uint8Array> {
  const runtime = join(modules, 'onnxruntime-web/dist');
  const names = readdirSync(runtime).filter((name) => /^ort-wasm.*\.(mjs|wasm)$/.test(name));
  return new Map<string, string | Uint8Array>([
    ['/index.html', PAGE],
    [
      '/transformers.js',
      readFileSync(join(modules, '@huggingface/transformers/dist/transformers.min.js')),
    ],
    ...names.map((name) => [`/ort/${name}`, readFileSync(join(runtime, name))] as const),
  ]);
}
