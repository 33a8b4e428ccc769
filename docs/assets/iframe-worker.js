// Browsers start no worker from a file on disk. There, the search of the docs runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.frame = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source === this.frame) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const content = frame.contentDocument;
      content.open();
      content.write(
        "<script>postMessage = (data) => parent.dispatchEvent(new MessageEvent('message', { data, source: window }));" +
          "importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done) => {" +
          "const script = document.createElement('script'); script.src = url; script.onload = done; document.body.append(script); })));" +
          `</scr${""}ipt><body><script src="${url}"></scr${""}ipt>`,
      );
      content.close();
      this.ready = new Promise((done) => (frame.onload = done));
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
