// What run.sh starts. It chooses a driver, runs each part in a process of its own, so that a crash
// does not stop the other parts, and writes report.md and report.json.
import { spawn } from 'node:child_process';
import {
  createWriteStream,
  existsSync,
  mkdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { availableParallelism, totalmem } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chooseDriver } from './choose-driver.mjs';
import { renderReport } from './report.mjs';

const APP = dirname(fileURLToPath(import.meta.url));
const OUT = resolve(process.argv[2] ?? 'report');
/**
 * The limit of one part. GPUs are lent for minutes only, while a software driver needs minutes to
 * compile the shaders of the op tests.
 */
const PART_LIMIT_MS = { hardware: 240_000, software: 600_000 };
/** A few steps suffice: the report shows the speed, and that the loss falls. */
const STEPS = '20';

mkdirSync(OUT, { recursive: true });
const driver = chooseDriver(OUT);
const isHardware = driver.adapters.some(({ isSoftware }) => !isSoftware);
const report = {
  date: new Date().toISOString(),
  commit: readFileSync(join(APP, '../commit'), 'utf8').trim(),
  node: process.versions.node,
  cores: availableParallelism(),
  memoryBytes: totalmem(),
  adapters: driver.adapters,
  driversTried: driver.tried,
  parts: [],
};
let running;
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.on(signal, () => {
    running?.kill('SIGKILL');
    process.exit(1);
  });
}
for (const part of parts()) {
  report.parts.push(await runPart(part));
  // It is written after every part, so that whatever was measured is kept if this run is ended.
  writeFileSync(join(OUT, 'report.json'), `${JSON.stringify(report, null, 2)}\n`);
  writeFileSync(join(OUT, 'report.md'), renderReport(report));
}
console.log(`wrote ${join(OUT, 'report.md')} and report.json`);
process.exitCode = report.parts.every(({ isOk }) => isOk) ? 0 : 1;

function parts() {
  const trainer = join(APP, 'dist/main.js');
  const training = (name, flags) => ({
    name: `trainer: ${name}`,
    args: [trainer, 'train', '--quiet', '--steps', STEPS, '--out', join(OUT, name), ...flags],
    out: join(OUT, name),
    results: join(OUT, name, 'summary.json'),
  });
  const webgpu = ['--device', 'webgpu'];
  const fsdp = ['--strategy', 'fsdp', '--ranks', '2', '--transport', 'memory'];
  const list = [];
  for (const device of ['webgpu', 'cpu']) {
    const results = join(OUT, `op-tests-${device}.json`);
    list.push({
      name: `op tests: ${device}`,
      args: [join(APP, 'op-tests.mjs'), device, results],
      results,
    });
  }
  const engines = ['shardweave-webgpu', 'shardweave-cpu', 'jax-webgpu', 'tfjs-webgpu'];
  const results = join(OUT, 'bench.md');
  const bench = [join(APP, 'bench/run.mjs'), '--rounds', '3', '--engines', engines.join(',')];
  list.push({ name: 'bench', args: [...bench, '--report', results], results });
  const beside = join(OUT, 'hardware.md');
  const scale = isHardware ? [] : ['--scale', 'tiny', '--python', '/usr/bin/python3'];
  const hardware = [join(APP, 'bench/hardware.mjs'), ...scale, '--report', beside];
  list.push({ name: 'bench beside PyTorch', args: hardware, results: beside });
  list.push(training('single-webgpu', ['--strategy', 'single', '--ranks', '1', ...webgpu]));
  for (const precision of ['fp32', 'fp16', 'bf16']) {
    const name = `fsdp-webgpu-${precision}`;
    list.push(training(name, [...fsdp, ...webgpu, '--precision', precision]));
  }
  const ddp = ['--strategy', 'ddp', '--ranks', '2', '--transport', 'memory'];
  list.push(training('ddp-webgpu-fp32', [...ddp, ...webgpu]));
  list.push(training('fsdp-cpu-and-webgpu', [...fsdp, '--device', 'cpu,webgpu']));
  if (isHardware) {
    const large = ['--model', 'gpt2', '--batch', '8', '--seq', '1024', '--strategy', 'single'];
    for (const precision of ['fp32', 'fp16']) {
      list.push(training(`gpt2-${precision}`, [...large, ...webgpu, '--precision', precision]));
    }
  }
  return list;
}

async function runPart({ name, args, results, out }) {
  if (out) {
    rmSync(out, { recursive: true, force: true });
  }
  console.log(`${name} ...`);
  const log = join(OUT, `${name.replaceAll(/[^\w]+/g, '-')}.log`);
  const stream = createWriteStream(log);
  const started = performance.now();
  const child = spawn(process.execPath, args, {
    cwd: APP,
    env: { ...process.env, ...driver.environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  child.stdout.pipe(stream, { end: false });
  child.stderr.pipe(stream, { end: false });
  const limit = PART_LIMIT_MS[isHardware ? 'hardware' : 'software'];
  const timer = setTimeout(() => child.kill('SIGKILL'), limit);
  running = child;
  const ended = await new Promise((resolvePart) => {
    child.on('close', (code, signal) => resolvePart(signal ?? code));
  });
  running = undefined;
  clearTimeout(timer);
  await new Promise((resolveEnd) => stream.end(resolveEnd));
  const seconds = (performance.now() - started) / 1000;
  const tail = readFileSync(log, 'utf8').trimEnd().split('\n').slice(-25).join('\n');
  const found = existsSync(results) ? readResults(results) : undefined;
  const isOk = ended === 0 && found !== undefined;
  console.log(`${name}: ${isOk ? 'ok' : `ended with ${ended}`}, ${seconds.toFixed(1)} s`);
  return { name, isOk, ended, seconds, results: found, tail };
}

/** Reads JSON, or any other text as it is. The summary of a training comes with its steps. */
function readResults(path) {
  const text = readFileSync(path, 'utf8');
  if (!path.endsWith('.json')) {
    return text;
  }
  const metrics = join(dirname(path), 'metrics.jsonl');
  if (!path.endsWith('summary.json') || !existsSync(metrics)) {
    return JSON.parse(text);
  }
  const lines = readFileSync(metrics, 'utf8').trim().split('\n');
  return { ...JSON.parse(text), steps: lines.map((line) => JSON.parse(line)) };
}
