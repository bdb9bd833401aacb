// The heartbeat worker of a rank in Node: a file for `new Worker`, not for `import`.

import { parentPort } from 'node:worker_threads';
import type { HeartbeatCommand } from './transports/ws/heartbeat/heartbeat-messages.js';
import { NodeHeartbeatWorker } from './transports/ws/heartbeat/node-heartbeat-worker.js';

const port = parentPort;
if (port !== null) {
  const worker = new NodeHeartbeatWorker((event) => port.postMessage(event));
  port.on('message', (command: HeartbeatCommand) => worker.obey(command));
}
