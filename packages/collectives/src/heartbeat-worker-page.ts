// The heartbeat worker of a rank in a page: a file for `new Worker`, not for `import`.

import type {
  PageHeartbeatCommand,
  PageHeartbeatEvent,
} from './transports/ws/heartbeat/heartbeat-messages.js';
import { PageHeartbeatWorker } from './transports/ws/heartbeat/page-heartbeat-worker.js';

interface WorkerScope {
  onmessage: (event: { readonly data: PageHeartbeatCommand }) => void;
  postMessage(event: PageHeartbeatEvent): void;
}

const scope = globalThis as unknown as WorkerScope;
const worker = new PageHeartbeatWorker((event) => scope.postMessage(event));
scope.onmessage = ({ data }) => worker.obey(data);
scope.postMessage({ type: 'ready' });
