"use strict";
// One stream of events for all tabs: browsers allow six connections to a server, and a stream takes one of them.

const ports = new Set();
let source = null, last = null, online = false;

function tell(message) {
  for (const port of ports) port.postMessage(message);
}

function listen(query) {
  if (source) return;
  source = new EventSource(`/api/events${query}`);
  source.onopen = () => { online = true; tell({ online }); };
  source.onerror = () => {
    online = false;
    tell({ online });
    // The browser tries again by itself unless the answer was an error.
    if (source.readyState === EventSource.CLOSED) { source = null; setTimeout(() => listen(query), 1500); }
  };
  source.addEventListener("versions", (event) => {
    online = true;
    last = JSON.parse(event.data);
    tell({ online, versions: last });
  });
}

self.onconnect = (event) => {
  const port = event.ports[0];
  ports.add(port);
  port.onmessage = (message) => {
    if (message.data.close) return ports.delete(port);
    listen(message.data.query);
    port.postMessage(last && online ? { online, versions: last } : { online });
  };
};
