// What other tools call flags and their values, so that a command answers with its own names.

const FLAGS: Readonly<Record<string, readonly string[]>> = {
  '--batch': ['batch-size', 'per-device-train-batch-size'],
  '--beta1': ['adam-beta1'],
  '--beta2': ['adam-beta2'],
  '--checkpoint-activations': ['gradient-checkpointing'],
  '--clip': ['max-grad-norm', 'grad-clip'],
  '--data': ['dataset', 'train-file'],
  '--dpo-beta': ['beta', 'pref-beta'],
  '--epochs': ['num-epochs', 'num-train-epochs'],
  '--eps': ['adam-epsilon'],
  '--eval-every': ['eval-steps', 'eval-interval'],
  '--grad-accum': ['gradient-accumulation-steps'],
  '--keep': ['save-total-limit'],
  '--log-every': ['logging-steps', 'log-interval', 'steps-per-report'],
  '--lora-rank': ['lora-r'],
  '--lr': ['learning-rate'],
  '--max-tokens': ['max-new-tokens', 'max-length'],
  '--model': ['model-name-or-path', 'checkpoint'],
  '--out': ['output-dir'],
  '--out, which leaves metrics.jsonl and a page': ['report-to', 'wandb'],
  '--precision': ['dtype'],
  '--precision bf16': ['bf16'],
  '--precision fp16': ['fp16'],
  '--ranks': ['nproc', 'nproc-per-node', 'num-processes', 'world-size'],
  '--resume': ['resume-from-checkpoint'],
  '--save-every': ['save-steps', 'save-interval'],
  '--schedule': ['lr-scheduler-type'],
  '--seq': ['block-size', 'context-length', 'max-seq-length'],
  '--steps': ['max-steps', 'max-iters', 'iters'],
  '--valid': ['validation-file'],
  '--warmup': ['warmup-steps'],
};

/**
 * What a flag of another tool is here, such as `--batch`.
 * @param typed such as `--batch_size`
 * @param own the flags of the command, such as `--batch`
 */
export function ownName(typed: string, own: readonly string[]): string | undefined {
  const name = dashed(typed);
  const found = Object.keys(FLAGS).find((flag) => FLAGS[flag]!.includes(name));
  return own.some((flag) => found?.split(/[ ,]/)[0] === flag) ? found : undefined;
}

const VALUES: Readonly<Record<string, readonly string[]>> = {
  bf16: ['bfloat16', 'bf16-mixed', 'bf16-true'],
  byte: ['bytes', 'char', 'utf8'],
  constant: ['constant-with-warmup'],
  ddp: ['dp', 'data-parallel'],
  f16: ['float16', 'fp16', 'half'],
  f32: ['float32', 'fp32', 'float'],
  fp16: ['float16', 'f16', 'half', '16-mixed', '16-true'],
  fp32: ['float32', 'f32', 'float', '32-true'],
  fsdp: ['fsdp2', 'full-shard', 'zero3', 'deepspeed'],
  gpt2: ['tiktoken', 'bpe', 'r50k-base'],
  q4_K_M: ['q4', 'int4', '4bit'],
  q5_K_M: ['q5'],
  q6_K: ['q6'],
  q8_0: ['q8', 'int8', '8bit'],
  webgpu: ['gpu', 'cuda', 'mps', 'metal', 'rocm', 'hip', 'xpu', 'vulkan'],
  ws: ['tcp', 'gloo', 'websocket', 'socket'],
  wsd: ['warmup-stable-decay', 'trapezoidal'],
};

/**
 * What a value of another tool is here, such as `bf16`.
 * @param typed such as `bfloat16`
 * @param own the values of the flag
 */
export function ownValue(typed: string, own: readonly string[]): string | undefined {
  const value = dashed(typed);
  return own.find((name) => dashed(name) === value || VALUES[name]?.includes(value));
}

/** A name or a value as these tables have it. */
function dashed(typed: string): string {
  return typed.replace(/^-+/, '').replaceAll('_', '-').toLowerCase();
}
